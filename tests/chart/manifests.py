"""Checks of the chart's manifests that no schema can make: scripts/check-chart runs them."""

import json
import re
import shlex
import subprocess
import sys
import tomllib

import yaml

# Variables of the pod's own, and those that mean to the agent what they mean to curl, docker and cosign.
OTHER_VARIABLES = {"NODE_NAME", "NODE_IP", "POD_NAME", "POD_NAMESPACE", "DOCKER_CONFIG", "COSIGN_PASSWORD",
                   "KBUILD_SIGN_PIN", "http_proxy", "https_proxy", "no_proxy", "LONGSHORE_LOG",
                   "LONGSHORE_LOG_FORMAT"}


def documents(path):
    """Returns the objects of a YAML file, by kind and name."""
    with open(path, encoding="utf-8") as file:
        found = [document for document in yaml.safe_load_all(file) if document]
    by_name = {(one["kind"], one["metadata"]["name"]): one for one in found}
    if len(by_name) != len(found):
        raise SystemExit(f"{path}: two objects have the same kind and name")
    return by_name


def equal(first, second):
    """Fails where two files have different objects."""
    ours, theirs = documents(first), documents(second)
    different = [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]
    if different:
        raise SystemExit(f"{first} and {second} differ in {different}")


def pod(path):
    """Fails where the DaemonSet names variables, volumes or objects that nothing has."""
    found = documents(path)
    (daemonset,) = [one for (kind, _), one in found.items() if kind == "DaemonSet"]
    spec = daemonset["spec"]["template"]["spec"]
    with open("docs/reference/configuration.md", encoding="utf-8") as file:
        settings = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", file.read()))
    volumes = [volume["name"] for volume in spec["volumes"]]
    wrong = []
    if len(set(volumes)) != len(volumes):
        wrong.append(f"volumes of the same name: {volumes}")
    used = set()
    for container in spec["containers"] + spec.get("initContainers", []):
        names = [one["name"] for one in container["env"]]
        wrong += [f"two variables {name}" for name in sorted(set(names)) if names.count(name) > 1]
        wrong += [f"{name} is no setting of the agent" for name in names
                  if name not in settings | OTHER_VARIABLES]
        mounts = container["volumeMounts"]
        paths = [mount["mountPath"] for mount in mounts]
        wrong += [f"two mounts on {path}" for path in sorted(set(paths)) if paths.count(path) > 1]
        used |= {mount["name"] for mount in mounts}
        # A path that the chart gives to the agent lies in one of the mounts.
        wrong += [f"{one['name']}: {file} is not mounted" for one in container["env"]
                  for file in one.get("value", "").split(",")
                  if file.startswith("/secrets/") and not any(file == path or file.startswith(path + "/")
                                                              for path in paths)]
    if used != set(volumes):
        wrong.append(f"volumes and mounts differ: {sorted(used ^ set(volumes))}")
    # The agent recognizes its own container by this name: agent/src/cluster.rs.
    if spec["containers"][0]["name"] != "longshore":
        wrong.append("the agent's container is not named longshore")
    config = next(volume["configMap"]["name"] for volume in spec["volumes"] if volume["name"] == "config")
    tomllib.loads(found["ConfigMap", config]["data"]["config.toml"])
    account = spec["serviceAccountName"]
    if ("ServiceAccount", account) not in found:
        wrong.append(f"no ServiceAccount {account}")
    for (kind, name), one in found.items():
        if kind.endswith("RoleBinding"):
            if (one["roleRef"]["kind"], one["roleRef"]["name"]) not in found:
                wrong.append(f"{kind} {name}: no {one['roleRef']}")
            if [subject["name"] for subject in one["subjects"]] != [account]:
                wrong.append(f"{kind} {name}: {one['subjects']}")
    if wrong:
        raise SystemExit(f"{path}: " + "; ".join(wrong))


def keys(values, schema, path=""):
    """Yields each place where values.yaml and its schema have different keys, or a schema is open."""
    properties = schema.get("properties")
    if properties is None:
        return
    if schema.get("additionalProperties") is not False:
        yield f"{path or 'the root'} lets other keys in"
    if not isinstance(values, dict) or not values:
        return
    # Not in values.yaml: `global`, which helm itself adds, and keys without a default.
    optional = {"global", *(("limits",) if path == ".resources" else ()), "initialDelaySeconds",
                "successThreshold", "ephemeral-storage"}
    for name in sorted((values.keys() ^ properties.keys()) - optional):
        yield f"{path}.{name} is in {'values.yaml' if name in values else 'the schema'} alone"
    for name in values.keys() & properties.keys():
        yield from keys(values[name], properties[name], f"{path}.{name}")


def comments(lines):
    """Yields each key of the first two levels without a comment above it or above its section."""
    commented = False
    for line in lines:
        key = re.match(r"( {0,2})([A-Za-z]\w*):(.*)", line)
        if line.strip().startswith("#"):
            commented = True
        elif key and key[1] == "":
            if not commented and key[3].strip():
                yield f"{key[2]} has no comment"
            section, commented_section = key[2], commented
            commented = False
        elif key:
            # Names that say it all beside a commented section or sibling.
            plain = {"pullPolicy", "https", "create", "annotations"}
            if not (commented or commented_section or key[2] in plain):
                yield f"{section}.{key[2]} has no comment"
            commented = False


def values(chart):
    """Fails where values.yaml and values.schema.json have different keys, or a key has no comment."""
    with open(f"{chart}/values.yaml", encoding="utf-8") as file:
        text = file.read()
    with open(f"{chart}/values.schema.json", encoding="utf-8") as file:
        schema = json.load(file)
    wrong = list(keys(yaml.safe_load(text), schema)) + list(comments(text.splitlines()))
    if wrong:
        raise SystemExit(f"{chart}/values.yaml: " + "; ".join(wrong))


def granted(path):
    """Returns the rights in a manifest: (scope, group, resource, verb)."""
    rights = set()
    for (kind, _), one in documents(path).items():
        if kind in ("Role", "ClusterRole"):
            scope = {"Role": "own namespace", "ClusterRole": "cluster"}[kind]
            rights |= {(scope, group or "core", resource, verb) for rule in one["rules"]
                       for group in rule["apiGroups"] for resource in rule["resources"]
                       for verb in rule["verbs"]}
    return rights


def documented():
    """Returns the table of rights in docs/cluster/kubernetes.md: for each value, its rights."""
    table = {}
    with open("docs/cluster/kubernetes.md", encoding="utf-8") as file:
        for line in file:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not (line.startswith("| `") and len(cells) == 6 and cells[1] in ("cluster", "own namespace")):
                continue
            value, scope, groups, resource, verbs, _ = cells
            table.setdefault(value.strip("`"), set()).update(
                (scope, group, resource, verb)
                for group in groups.split(", ") for verb in verbs.split(", "))
    return table


def rights(value, path):
    """Fails where the rights of a manifest, rendered with `value` alone, are not those of the table."""
    wanted = documented().get(value)
    if wanted is None:
        raise SystemExit(f"docs/cluster/kubernetes.md: the table of rights has no row for `{value}`")
    if granted(path) != wanted:
        raise SystemExit(f"{value}: granted and documented rights differ in {sorted(granted(path) ^ wanted)}")


def rights_of_all():
    """Prints the values of the table."""
    print("\n".join(sorted(documented())))


def probes(path, wanted):
    """Fails where the probes' handler is another one than `wanted`: `http HOST`, or `exec`."""
    (daemonset,) = [one for (kind, _), one in documents(path).items() if kind == "DaemonSet"]
    container = daemonset["spec"]["template"]["spec"]["containers"][0]
    for name, place, option in (("startupProbe", "/healthz", "--alive"), ("livenessProbe", "/healthz", "--alive"),
                                ("readinessProbe", "/readyz", "--ready")):
        probe = container[name]
        if "httpGet" in probe:
            found = "http " + probe["httpGet"].get("host", "-")
            right = probe["httpGet"]["path"] == place
        else:
            found, right = "exec", probe["exec"]["command"] == ["longshore", "status", option]
        if found != wanted or not right:
            raise SystemExit(f"{name} is {probe}, not {wanted}")


def environment(path, into):
    """Writes the variables of the agent's container to the file `into`/environment, each ended by a 0 byte, and
    its configuration to `into`/config.toml."""
    found = documents(path)
    (daemonset,) = [one for (kind, _), one in found.items() if kind == "DaemonSet"]
    spec = daemonset["spec"]["template"]["spec"]
    given = {one["name"]: one["value"] for one in spec["containers"][0]["env"] if "value" in one}
    with open(f"{into}/environment", "w", encoding="utf-8") as file:
        file.write("".join(f"{name}={value}\0" for name, value in given.items()))
    config = next(volume["configMap"]["name"] for volume in spec["volumes"] if volume["name"] == "config")
    with open(f"{into}/config.toml", "w", encoding="utf-8") as file:
        file.write(found["ConfigMap", config]["data"]["config.toml"])


def kubectl(program, *pages):
    """Fails where a kubectl command in a block of shell of these pages has an option or command that this kubectl does
    not know: with --help it reads its command line, and calls no server."""
    tried, wrong = 0, []
    for page in pages:
        with open(page, encoding="utf-8") as file:
            blocks = re.findall(r"^```sh\n(.*?)^```$", file.read(), re.M | re.S)
        lines = "".join(blocks).replace("\\\n", " ")
        # A quoted text goes on in the next line.
        lines = re.sub(r"'[^'\n]*(?:\n[^']*)?'", lambda quoted: quoted[0].replace("\n", " "), lines).splitlines()
        for part in (part for line in lines for part in re.split(r"\|\s", re.sub(r"\s#.*", "", line))):
            if not part.strip().startswith("kubectl ") or part.strip().startswith("kubectl longshore "):
                continue
            words = shlex.split(part)[1:]
            end = words.index("--") if "--" in words else len(words)
            command = [program, *words[:end], "--help"]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            tried += 1
            if ran.returncode != 0 or "Usage:" not in ran.stdout:
                wrong.append(f"{page}: {part.strip()}: {ran.stderr.strip()}")
    if wrong or not tried:
        raise SystemExit("; ".join(wrong) or f"no command of kubectl in {pages}")
    print(tried)


DOCTOR = """# `longshore doctor` once on one node whose agent has ended, with the mounts, rights and settings of the DaemonSet in
# {0}, of which `scripts/check-chart --write` makes it. Where the chart has other values,
# `longshore fleet doctor NODE` takes those of the cluster's own DaemonSet.
#   sed s/NODE_TO_DIAGNOSE/gpu-1/ deploy/kubernetes/doctor.yaml | kubectl create --filename -
#   kubectl --namespace longshore wait job longshore-doctor \\
#     --for jsonpath='{{.status.conditions[0].status}}'=True --timeout 6m
#   kubectl --namespace longshore logs job/longshore-doctor
#   kubectl --namespace longshore delete job longshore-doctor     # without it, ten minutes after its end
"""


def doctor(path):
    """Prints deploy/kubernetes/doctor.yaml: a Job of the DaemonSet's pod."""
    ((name, daemonset),) = [(name, one) for (kind, name), one in documents(path).items() if kind == "DaemonSet"]
    of_set = daemonset["spec"]["template"]["spec"]
    (container,) = of_set["containers"]
    log = {"LONGSHORE_LOG": "error", "LONGSHORE_LOG_FORMAT": "pretty"}
    env = [{"name": one["name"], "value": log[one["name"]]} if one["name"] in log else one
           for one in container["env"]]
    same = ("image", "imagePullPolicy", "securityContext")
    pod = {
        "nodeName": "NODE_TO_DIAGNOSE", "restartPolicy": "Never", "activeDeadlineSeconds": 300,
        "terminationGracePeriodSeconds": 5,
        **{key: of_set[key] for key in ("serviceAccountName", "hostPID", "hostNetwork", "dnsPolicy",
                                        "enableServiceLinks", "tolerations")},
        # None of the names by which agents' pods are found: agent/src/cluster.rs.
        "containers": [{"name": "doctor", **{key: container[key] for key in same}, "command": ["longshore"], "args": ["doctor"],
                        "env": env, "volumeMounts": container["volumeMounts"]}],
        "volumes": of_set["volumes"],
    }
    job = {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": f"{name}-doctor", "namespace": daemonset["metadata"]["namespace"]},
        "spec": {"backoffLimit": 0, "ttlSecondsAfterFinished": 600, "template": {
            "metadata": {"labels": {"app.kubernetes.io/name": "longshore-doctor"}}, "spec": pod}},
    }
    print(DOCTOR.format(path) + yaml.safe_dump(job, sort_keys=False, width=110), end="")


# Keys of maps that have one owner as a whole, with the values that the API server gives those that are absent: a
# manifest that leaves them out conflicts with itself where it is applied by the client first, and then by the server
# (k8s.io/api: `structType=atomic` of ObjectFieldSelector and MatchResources).
ATOMIC = {
    "fieldRef": {"apiVersion": "v1"},
    "matchConstraints": {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}},
}


def written_out(path):
    """Fails where a map with one owner leaves a default to the API server."""
    wrong, found = [], set()

    def look(one, place):
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, value in items:
            here = f"{place}.{key}"
            if key in ATOMIC:
                found.add(key)
                wrong.extend(f"{here} has no {name}" for name in ATOMIC[key].keys() - value.keys())
            if key == "resourceRules":
                wrong.extend(f"{here} has no scope" for rule in value if "scope" not in rule)
            look(value, here)

    for (kind, name), one in documents(path).items():
        look(one, f"{kind}/{name}")
    if wrong or "fieldRef" not in found:
        raise SystemExit(f"{path}: " + ("; ".join(sorted(wrong)) or "no fieldRef was found"))


NODE_NAME = "authentication.kubernetes.io/node-name"
# User, node names in the token, node that is to be changed, and the policy's answer.
REQUESTS = [
    ("system:serviceaccount:gpu:driver", ["n1"], "n1", "allowed"),
    ("system:serviceaccount:gpu:driver", ["n1"], "n2",
     "longshore's agent on node n1 may not change node n2"),
    ("system:serviceaccount:gpu:driver", ["n1"], "n10",
     "longshore's agent on node n1 may not change node n10"),
    ("system:serviceaccount:gpu:driver", None, "n1",
     "the token of longshore's agent names no node, so that it cannot be compared"),
    # No server makes such a token; failurePolicy denies what cannot be evaluated.
    ("system:serviceaccount:gpu:driver", [], "n1", "error"),
    ("system:serviceaccount:gpu:other", ["n1"], "n2", "not matched"),
    ("system:serviceaccount:other:driver", ["n1"], "n2", "not matched"),
    ("system:node:n1", None, "n2", "not matched"),
    ("admin", None, "n1", "not matched"),
]


def policy(path):
    """Fails where the ValidatingAdmissionPolicy answers a request otherwise than `REQUESTS` says. CEL's own
    evaluator runs its expressions, with the optional syntax that Kubernetes has."""
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_optional

    # The binding has another kind.
    (spec,) = [one["spec"] for (kind, _), one in documents(path).items() if kind == "ValidatingAdmissionPolicy"]
    names = ("request", "object", "variables")
    env = cel.NewEnv(variables={name: cel.Type.DYN for name in names}, extensions=[ext_optional.ExtOptional()])

    def value(expression, data):
        found = env.compile(expression).eval(data=data)
        if found.type() == cel.Type.ERROR:
            raise ValueError(found.value())
        return found.value()

    def answer(user, token, node):
        extra = {} if token is None else {NODE_NAME: token}
        data = {"request": {"userInfo": {"username": user, "extra": extra}, "operation": "UPDATE", "name": node},
                "object": {"metadata": {"name": node}}, "variables": {}}
        if not all(value(one["expression"], data) for one in spec["matchConditions"]):
            return "not matched"
        for one in spec["variables"]:
            data["variables"][one["name"]] = value(one["expression"], data)
        for one in spec["validations"]:
            if not value(one["expression"], data):
                return one.get("message") or value(one["messageExpression"], data)
        return "allowed"

    for user, token, node, wanted in REQUESTS:
        try:
            found = answer(user, token, node)
        except ValueError as error:
            found, told = "error", f" ({error})"
        else:
            told = ""
        if found != wanted:
            raise SystemExit(f"{path}: {user} with {token} changes {node}: {found}{told}, not {wanted}")


CHECKS = {check.__name__: check for check in (equal, pod, values, rights, rights_of_all, probes,
                                          environment, policy, written_out, doctor, kubectl)}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](*sys.argv[2:])
