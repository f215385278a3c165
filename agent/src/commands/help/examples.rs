//! Examples of each command: a comment, and a command line that a test parses.

/// An example: its purpose, and its command line.
pub(super) type Example = (&'static str, &'static str);

/// Returns the examples of a command; `path` is its name behind the program's.
pub(super) fn examples_of(path: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(of, _)| *of == path).map_or(&[], |(_, examples)| examples)
}

const EXAMPLES: &[(&str, &[Example])] = &[
    (
        "run",
        &[
            (
                "The newest driver of branch 580, with nvidia-drm",
                "longshore run --driver 580 --extra-module nvidia-drm",
            ),
            (
                "Prebuilt modules alone, from a registry",
                "longshore run --registry registry.example.com/nvidia/modules --no-compile",
            ),
        ],
    ),
    (
        "plan",
        &[
            ("Steps and obstacles of branch 580 on this host", "longshore plan --driver 580"),
            (
                "Would the driver be available after a reboot into another kernel?",
                "longshore plan --kernel 6.12.118+deb13-amd64",
            ),
            ("For a script: exit code and JSON", "longshore plan --json"),
        ],
    ),
    (
        "doctor",
        &[
            (
                "Present and future obstacles on this host, and of its sources",
                "longshore doctor --online",
            ),
            ("Checks of NVIDIA's GPU operator", "longshore doctor --operator"),
        ],
    ),
    (
        "explain",
        &[
            ("Meaning and remedy of a finding", "longshore explain signature-required"),
            ("The same of an exit code", "longshore explain 15"),
        ],
    ),
    (
        "settings",
        &[
            ("All settings, in groups", "longshore settings"),
            (
                "Everything about one, by its flag, variable or key",
                "longshore settings store-max-size",
            ),
            ("The same as JSON", "longshore settings LONGSHORE_DRIVER --json"),
        ],
    ),
    (
        "build",
        &[
            (
                "Modules of branch 580 for another kernel",
                "longshore build --driver 580 --kernel 6.1.0-50-amd64",
            ),
            (
                "The same, signed in an OCI image layout",
                "longshore build --out modules --sign-key cosign.key",
            ),
        ],
    ),
    (
        "builder",
        &[
            (
                "Two drivers for the kernels of a cluster's GPU nodes, in a pod",
                "longshore builder --cluster --selector gpu=true --builder-driver 580 \
                 --builder-driver 595",
            ),
            (
                "One kernel, and end",
                "longshore builder --once --kernel 6.1.0-50-amd64 --publish registry.example.com/a",
            ),
        ],
    ),
    ("build-root", &[("The build root of a configuration", "longshore build-root inspect")]),
    (
        "build-root inspect",
        &[
            (
                "Kernels and compilers of a directory",
                "longshore build-root inspect /srv/build-root",
            ),
            ("Those of the configured build root, as JSON", "longshore build-root inspect --json"),
        ],
    ),
    (
        "sign-modules",
        &[
            (
                "With a key that this host has",
                "longshore sign-modules --module-key mok.pem --module-certificate mok.der",
            ),
            ("Modules to be signed where the key is", "longshore sign-modules --export unsigned"),
        ],
    ),
    (
        "push",
        &[
            (
                "All sets of the store that are for this host's kernel",
                "longshore push registry.example.com/nvidia/modules",
            ),
            (
                "Signed and attested",
                "longshore push registry.example.com/nvidia/modules --sign-key cosign.key --attest",
            ),
        ],
    ),
    (
        "attest",
        &[
            (
                "A bill of materials, for a set in a registry",
                "longshore attest r.example.com/gpu:stable --type spdx --predicate bom.json --sign-key cosign.key",
            ),
            (
                "A test's result, for a layout",
                "longshore attest modules --type test-result --predicate result.json --sign-key cosign.key",
            ),
        ],
    ),
    (
        "sign",
        &[
            (
                "The image HOST/REPOSITORY@DIGEST of a registry",
                "longshore sign $IMAGE --sign-key cosign.key",
            ),
            (
                "A file, whose signature goes into SHA256SUMS.sig",
                "longshore sign SHA256SUMS --sign-key cosign.key",
            ),
        ],
    ),
    (
        "verify",
        &[
            ("The signature of the sets in a layout", "longshore verify modules --key cosign.pub"),
            (
                "Signature and provenance of a set in a registry",
                "longshore verify registry.example.com/gpu:stable --key cosign.pub --attestation provenance",
            ),
        ],
    ),
    (
        "list",
        &[
            (
                "Sets for a kernel",
                "longshore list registry.example.com/nvidia/modules --kernel 6.1.0-50-amd64",
            ),
            ("The set under a tag", "longshore list registry.example.com/nvidia/modules:stable"),
        ],
    ),
    (
        "index",
        &[
            (
                "The signed sets of a repository, for a month",
                "longshore index registry.example.com/nvidia/modules --sign-key cosign.key --expires 30d",
            ),
            (
                "The index that is there, and who signed it",
                "longshore index r.example.com/nvidia/modules --show --trust index=/keys/cosign.pub",
            ),
        ],
    ),
    (
        "fetch",
        &[
            ("Everything for this host, into the store", "longshore fetch --driver 580"),
            (
                "For two kernels",
                "longshore fetch --kernel 6.1.0-50-amd64 --kernel 6.12.118+deb13-amd64",
            ),
        ],
    ),
    (
        "bundle",
        &[
            (
                "A file for hosts without a network",
                "longshore bundle --driver 580 --out driver.tar",
            ),
            (
                "For another kernel, signed",
                "longshore bundle --out driver.tar --kernel 6.1.0-50-amd64 --sign-key cosign.key",
            ),
        ],
    ),
    (
        "import",
        &[
            ("A bundle, into the store of this host", "longshore import driver.tar"),
            ("Only if everything in it is signed", "longshore import driver.tar --key cosign.pub"),
        ],
    ),
    (
        "gc",
        &[
            (
                "The effect of a smaller store, without removing anything",
                "longshore gc --max-size 2GiB --dry-run",
            ),
            ("Removal of what the host does not need", "longshore gc --max-size 0"),
        ],
    ),
    ("store", &[("Damage in the store", "longshore store verify")]),
    (
        "store verify",
        &[
            ("Damage in the store", "longshore store verify"),
            (
                "The same of another store, as JSON",
                "longshore store verify --store /srv/longshore --json",
            ),
        ],
    ),
    (
        "unload",
        &[
            ("The driver that an agent left installed", "longshore unload"),
            ("Longer waits on processes that use it", "longshore unload --unload-deadline 5m"),
            (
                "What an agent left whose store is lost, by your word alone",
                "longshore unload --take-over-unsealed",
            ),
        ],
    ),
    (
        "status",
        &[
            ("Driver, phase and last failure", "longshore status"),
            (
                "Exit code 0 once the driver is ready, for a script",
                "longshore status --ready --wait 10m",
            ),
            ("A liveness probe", "longshore status --alive"),
        ],
    ),
    (
        "fleet",
        &[
            ("The driver on each node", "longshore fleet status"),
            ("The plan of each node for another branch", "longshore fleet plan --driver 595"),
            (
                "The log of a node's agent before its restart",
                "longshore fleet logs NODE --previous",
            ),
        ],
    ),
    (
        "fleet status",
        &[
            ("The driver on each node", "longshore fleet status"),
            ("Another cluster, as JSON", "longshore fleet status --context staging --json"),
            (
                "Exit code 0 once a DaemonSet's pods are Ready, in a pod of the cluster",
                "longshore fleet status --in-cluster --daemonsets gpu/longshore --wait 1m",
            ),
        ],
    ),
    (
        "fleet plan",
        &[
            ("The plan of each node for another branch", "longshore fleet plan --driver 595"),
            ("Only the pods of one namespace", "longshore fleet plan --namespace gpu"),
        ],
    ),
    (
        "fleet clean",
        &[
            (
                "Leftovers on nodes without an agent, without removing them",
                "longshore fleet clean --dry-run",
            ),
            ("Their removal", "longshore fleet clean"),
            (
                "The same in a pod of the cluster, after the end of the agents",
                "longshore fleet clean --in-cluster --end-daemonsets gpu/longshore",
            ),
        ],
    ),
    (
        "fleet doctor",
        &[
            (
                "A diagnosis of a node, also where its agent has ended",
                "longshore fleet doctor NODE",
            ),
            ("The node's archives and registries, too", "longshore fleet doctor NODE --online"),
        ],
    ),
    (
        "fleet logs",
        &[
            ("The last lines of a node's agent", "longshore fleet logs NODE --tail 50"),
            ("The log before its last restart", "longshore fleet logs NODE --previous"),
        ],
    ),
    (
        "evictor",
        &[("The controller, for at most three nodes at a time", "longshore evictor --max-nodes 3")],
    ),
    (
        "cdi",
        &[
            ("GPUs that a container can ask for", "longshore cdi list"),
            ("The CDI spec", "longshore cdi show"),
        ],
    ),
    (
        "cdi list",
        &[
            ("Names for `podman run --device`", "longshore cdi list"),
            ("The same as JSON", "longshore cdi list --json"),
        ],
    ),
    (
        "cdi show",
        &[
            ("The CDI spec of the installed driver", "longshore cdi show"),
            (
                "With the libraries of graphics",
                "longshore cdi show --cdi-capability compute --cdi-capability graphics",
            ),
        ],
    ),
    (
        "runtime",
        &[
            ("Runtimes of this host that read no CDI specs", "longshore runtime check"),
            ("docker's edit, without making it", "longshore runtime configure docker --dry-run"),
        ],
    ),
    (
        "runtime check",
        &[
            ("All runtimes of this host", "longshore runtime check"),
            ("One of them, as JSON", "longshore runtime check containerd --json"),
        ],
    ),
    (
        "runtime configure",
        &[
            ("The edit, without making it", "longshore runtime configure docker --dry-run"),
            (
                "The edit, and a restart of docker",
                "longshore runtime configure docker --yes --restart",
            ),
        ],
    ),
    (
        "runtime revert",
        &[
            ("docker's configuration as before the edit", "longshore runtime revert docker"),
            ("containerd's, with a restart", "longshore runtime revert containerd --restart"),
        ],
    ),
    (
        "docker-args",
        &[
            ("Options for all GPUs", "longshore docker-args --gpus all"),
            ("Options for two of them", "longshore docker-args --gpus device=0,1"),
        ],
    ),
    (
        "completions",
        &[
            (
                "For bash, and all users",
                "longshore completions bash > /etc/bash_completion.d/longshore",
            ),
            (
                "For fish, and one user",
                "longshore completions fish > ~/.config/fish/completions/longshore.fish",
            ),
        ],
    ),
    (
        "man",
        &[
            ("Manual pages of all commands", "longshore man --out /usr/local/share/man/man1"),
            ("For a package that is being built", "longshore man --out debian/man"),
        ],
    ),
];
