"""Checks of the chart's manifests that no schema can make: scripts/check-chart runs them."""

import json
import pathlib
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


# Directory of the service account's files: crates/cluster/src/account.rs.
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


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


def policies_first(path):
    """Prints the objects of a YAML file, the admission policies before the rights that they restrict: `kubectl apply`
    makes them in this order."""
    with open(path, encoding="utf-8") as file:
        parts = [part.strip() for part in re.split(r"^---$", re.sub(r"^# Source: .*\n", "", file.read(), flags=re.M), flags=re.M)]
    parts = [re.sub(r"\n\n+", "\n", part) for part in parts if part]
    head = re.match(r"(#.*\n)*", parts[0])[0]
    parts[0] = parts[0].removeprefix(head)
    kind = lambda part: re.search(r"^kind: (\w+)", part, re.M)[1]
    order = {"Namespace": 0, "ServiceAccount": 1, "ValidatingAdmissionPolicy": 2, "ValidatingAdmissionPolicyBinding": 3}
    print(head + "\n---\n".join(sorted(parts, key=lambda part: order.get(kind(part), 4))))


def daemonsets(found):
    """Returns the DaemonSets among objects by kind and name."""
    sets = [one for (kind, _), one in found.items() if kind == "DaemonSet"]
    if not sets:
        raise SystemExit("there is no DaemonSet")
    return sets


def pod(path):
    """Fails where a DaemonSet names variables, volumes or objects that nothing has, or two choose each other's pods."""
    found = documents(path)
    sets = daemonsets(found)
    wrong = [problem for one in sets for problem in of_pod(one["spec"]["template"]["spec"], found)]
    wrong += [*of_builder(found), *of_index_record(found)]
    for one in sets:
        selector, template = one["spec"]["selector"]["matchLabels"], one["spec"]["template"]["metadata"]["labels"]
        for other in sets:
            labels = other["spec"]["template"]["metadata"]["labels"]
            if (selector.items() <= labels.items()) != (other is one):
                wrong.append(f"{selector} and the pods with {labels}")
        if not selector.items() <= template.items():
            wrong.append(f"{selector} does not choose its own pods")
        for (kind, name), other in found.items():
            if kind == "Deployment" and selector.items() <= other["spec"]["template"]["metadata"]["labels"].items():
                wrong.append(f"{selector} chooses the pods of {name}")
    for (kind, name), one in found.items():
        if kind.endswith("RoleBinding"):
            role = (one["roleRef"]["kind"], one["roleRef"]["name"])
            account = [subject["name"] for subject in one["subjects"]]
            hook = "annotations" in one["metadata"] and one["metadata"]["annotations"].get("helm.sh/hook")
            accounts = {subject["name"] for subject in one["subjects"]}
            of_pods = {single["spec"]["template"]["spec"]["serviceAccountName"] for (kind, _), single in found.items()
                       if kind in ("DaemonSet", "Deployment")}
            if role not in found:
                wrong.append(f"{kind} {name}: no {role}")
            # The accounts of hooks have the rights of hooks alone.
            if len(account) != 1 or ("ServiceAccount", account[0]) not in found or (accounts <= of_pods) == bool(hook):
                wrong.append(f"{kind} {name}: {one['subjects']}")
    if wrong:
        raise SystemExit(f"{path}: " + "; ".join(wrong))


def of_containers(spec, own):
    """Yields what is wrong in longshore's own containers of a pod, and in its volumes."""
    with open("docs/reference/configuration.md", encoding="utf-8") as file:
        settings = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", file.read()))
    volumes = [volume["name"] for volume in spec["volumes"]]
    if len(set(volumes)) != len(volumes):
        yield f"volumes of the same name: {volumes}"
    used = set()
    for container in own:
        names = [one["name"] for one in container["env"]]
        yield from (f"two variables {name}" for name in sorted(set(names)) if names.count(name) > 1)
        yield from (f"{name} is no setting" for name in names if name not in settings | OTHER_VARIABLES)
        mounts = container["volumeMounts"]
        paths = [mount["mountPath"] for mount in mounts]
        yield from (f"two mounts on {path}" for path in sorted(set(paths)) if paths.count(path) > 1)
        used |= {mount["name"] for mount in mounts}
        # A path that the chart gives to the agent lies in one of the mounts.
        yield from (f"{one['name']}: {file} is not mounted" for one in container["env"]
                    for file in one.get("value", "").split(",")
                    if file.startswith("/secrets/") and not any(file == path or file.startswith(path + "/")
                                                                for path in paths))
        # In a namespace with a quota of them, a pod without is refused.
        if "requests" not in container.get("resources", {}):
            yield f"container {container['name']} has no requests of resources"
        if container["securityContext"].get("readOnlyRootFilesystem") is not True:
            yield f"the root of container {container['name']} is writable"
        yield from (f"container {container['name']} has no {path} to write to" for path in ("/run", "/tmp")
                    if path not in paths)
    if used != set(volumes):
        yield f"volumes and mounts differ: {sorted(used ^ set(volumes))}"


def secrets_of(spec):
    """Returns the Secrets that a pod uses, but for those of `env`, `envFrom` and `mounts`, which are of the user's own."""
    of_volumes = {one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one and not one["name"].startswith("mount-")}
    own = ("COSIGN_PASSWORD", "KBUILD_SIGN_PIN")
    return of_volumes | {one["valueFrom"]["secretKeyRef"]["name"] for container in spec["containers"]
                         for one in container.get("env", []) if one["name"] in own}


# Rights of the build sandbox: docs/supply-chain/builder.md.
SANDBOX = {"SYS_ADMIN", "SYS_CHROOT", "SETUID", "SETGID", "CHOWN", "FOWNER", "DAC_OVERRIDE", "KILL"}


def of_builder(found):
    """Yields what is wrong in the builder's pod: it alone has the keys and the login that pushes."""
    builders = [one["spec"]["template"]["spec"] for (kind, name), one in found.items()
                if kind == "Deployment" and name.endswith("-builder")]
    of_agents = set().union(*(secrets_of(one["spec"]["template"]["spec"]) for one in daemonsets(found)))
    for daemonset in daemonsets(found):
        names = {one["name"] for container in daemonset["spec"]["template"]["spec"]["containers"]
                 for one in container.get("env", [])}
        wrong = names & {"COSIGN_PASSWORD", "KBUILD_SIGN_PIN", "LONGSHORE_PUBLISH_KEY", "LONGSHORE_MODULE_KEY"}
        if wrong:
            yield f"agents with {sorted(wrong)}"
    for spec in builders:
        (container,) = spec["containers"]
        yield from of_containers(spec, [container])
        if secrets_of(spec) & of_agents:
            yield f"agents with Secrets of the builder: {sorted(secrets_of(spec) & of_agents)}"
        context = container["securityContext"]
        if set(context["capabilities"]["add"]) != SANDBOX or context["capabilities"]["drop"] != ["ALL"] or "privileged" in context:
            yield f"the builder's rights: {context}"
        if any("hostPath" in volume for volume in spec["volumes"]) or spec.get("hostPID") or spec.get("hostNetwork"):
            yield "the builder's pod reaches the node"
        if any("key" not in one for one in spec.get("tolerations", [])):
            yield f"the builder's pod tolerates every taint, those of GPU nodes too: {spec['tolerations']}"
        for name, option in (("livenessProbe", "--alive"), ("readinessProbe", "--ready")):
            if container[name]["exec"]["command"] != ["longshore", "builder", option]:
                yield f"{name} is {container[name]}"
        tomllib.loads(config_of(spec, found))


def of_index_record(found):
    """Yields what is wrong in the ConfigMap of the builder's highest index: the builder alone writes it, and the agents that
    need an index read it as a directory, which the kubelet keeps current."""
    builders = [one["spec"]["template"]["spec"]["containers"][0]["args"] for (kind, name), one in found.items()
                if kind == "Deployment" and name.endswith("-builder")]
    records = [arg.removeprefix("--index-record=") for args in builders for arg in args if arg.startswith("--index-record=")]
    readers = 0
    for daemonset in daemonsets(found):
        spec = daemonset["spec"]["template"]["spec"]
        agent = spec["containers"][0]
        env = {one["name"]: one.get("value") for one in agent["env"]}
        volumes = [one for one in spec["volumes"] if one["name"] == "index-record"]
        mounts = [one for one in agent["volumeMounts"] if one["name"] == "index-record"]
        file = env.get("LONGSHORE_INDEX_MINIMUM_FILE")
        if not (builders and env.get("LONGSHORE_REQUIRE_INDEX")):
            if volumes or mounts or file:
                yield f"{daemonset['metadata']['name']} reads a record of an index that it does not need"
            continue
        readers += 1
        if volumes != [{"name": "index-record", "configMap": {"name": one, "optional": True}} for one in records]:
            yield f"{daemonset['metadata']['name']} reads {volumes}, and the builder writes {records}"
        if mounts != [{"name": "index-record", "mountPath": "/etc/longshore-index", "readOnly": True}]:
            yield f"{daemonset['metadata']['name']} mounts the record as {mounts}"
        if file != "/etc/longshore-index/index-minimum":
            yield f"{daemonset['metadata']['name']} reads {file}"
    if len(records) != (1 if readers else 0):
        yield f"records of the index: {records}, for {readers} DaemonSets"
    for record in records:
        # With data, an upgrade would reset it.
        if "data" in found.get(("ConfigMap", record), {"data": None}):
            yield f"ConfigMap {record}: absent, or with data"
    writers = {name: rule for (kind, name), one in found.items() if kind in ("Role", "ClusterRole")
               for rule in one.get("rules") or [] if "configmaps" in rule["resources"]}
    if not all(name.endswith("-builder") and rule["resourceNames"] == records and rule["verbs"] == ["get", "patch"]
               for name, rule in writers.items()) or len(writers) > len(records):
        yield f"rights to ConfigMaps: {writers}"


def of_pod(spec, found):
    """Yields what is wrong in the pod of a DaemonSet, among all objects."""
    own = [one for one in spec["containers"] + spec.get("initContainers", []) if one["name"] in ("longshore", "import")]
    yield from of_containers(spec, own)
    volumes = [volume["name"] for volume in spec["volumes"]]
    # The agent recognizes its own container by this name: agent/src/cluster/mod.rs.
    if spec["containers"][0]["name"] != "longshore":
        yield "the agent's container is not named longshore"
    tomllib.loads(config_of(spec, found))
    if ("ServiceAccount", spec["serviceAccountName"]) not in found:
        yield f"no ServiceAccount {spec['serviceAccountName']}"
    # No container but the agent's has a token, and none of them writes beside its mounts.
    if spec["automountServiceAccountToken"] is not False:
        yield "the token is mounted into each container"
    for container in spec["containers"] + spec.get("initContainers", []):
        has_token = TOKEN in [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        if has_token != (container["name"] == "longshore" and "api-access" in volumes):
            yield f"container {container['name']}: token {has_token}"


def config_of(spec, found):
    """Returns the configuration file of a DaemonSet's pod."""
    config = next(volume["configMap"]["name"] for volume in spec["volumes"] if volume["name"] == "config")
    return found["ConfigMap", config]["data"]["config.toml"]


def pools(path):
    """Fails where the manifest of tests/chart/pools.yaml has not the pools' own values."""
    found = documents(path)
    made = {}
    for one in daemonsets(found):
        spec = one["spec"]["template"]["spec"]
        (agent,) = spec["containers"]
        env = {variable["name"]: variable.get("value") for variable in agent["env"]}
        made[one["metadata"]["name"]] = (
            env["LONGSHORE_DRIVER"], env["LONGSHORE_WAIT_TO_CHANGE"], env.get("LONGSHORE_JOBS"),
            env.get("LONGSHORE_COMPILE"), config_of(spec, found).splitlines()[1:], agent["image"].rsplit(":", 1)[1],
            spec["nodeSelector"].get("node.example/model"), spec["nodeSelector"]["node.example/gpu"],
            "tolerations" in spec, "initContainers" in spec,
            one["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"])
    version = made["gpu-longshore-others"][5]
    wanted = {
        "gpu-longshore-h100": ("550.163.01", "false", None, "false", ["jobs = 4"], version, "h100", "true", True, False, 2),
        "gpu-longshore-t4": ("535.261.03", "true", "2", None, [], "0.2.0", "t4", "true", False, True, 1),
        "gpu-longshore-others": ("535.261.03", "true", "2", None, [], version, None, "true", True, False, 1),
    }
    if made != wanted:
        raise SystemExit(f"{path}: {made}, not {wanted}")
    (job,) = found["Job", "gpu-longshore-clean"]["spec"]["template"]["spec"]["containers"]
    (test,) = found["Pod", "gpu-longshore-test"]["spec"]["containers"]
    sets = ",".join(f"gpu/{name}" for name in made)
    wanted = (["fleet", "clean", "--in-cluster", "--end-daemonsets", sets, "--wait", "4m"],
              ["fleet", "status", "--in-cluster", "--daemonsets", sets, "--wait", "1m"])
    images = {job["image"], test["image"]}
    if (job["args"], test["args"]) != wanted or {image.rsplit(":", 1)[1] for image in images} != {version}:
        raise SystemExit(f"{path}: the hooks run {job}, {test}, not {wanted}")


def monitoring(every, of_pools):
    """Fails where the alerts or the dashboard are not those of the chart's files, with the values of
    tests/chart/every-value.yaml and pools.yaml in their places."""
    files = pathlib.Path("deploy/helm/longshore/files")
    alerts = [rule for group in yaml.safe_load(files.joinpath("alerts.yaml").read_text("utf-8"))["groups"]
              for rule in group["rules"]]
    found, pooled = documents(every), documents(of_pools)
    wrong = []
    dashboard = found["ConfigMap", "driver-dashboard"]["data"]["longshore.json"]
    if json.loads(dashboard) != json.loads(files.joinpath("dashboard.json").read_text("utf-8")):
        wrong.append("another dashboard")
    for name, objects, left_out, job, sets in (
            ("driver", found, {"LongshoreAgentDown"}, "longshore", "driver"),
            ("gpu-longshore", pooled, set(), "gpu/gpu-longshore",
             "(gpu-longshore-h100|gpu-longshore-t4|gpu-longshore-others)")):
        groups = objects["PrometheusRule", name]["spec"]["groups"]
        rules = {rule.get("alert", rule.get("record")): rule for group in groups for rule in group["rules"]}
        names = {alert["alert"] for alert in alerts} - left_out | ({"gpus"} if left_out else set())
        if rules.keys() != names or not left_out <= {alert["alert"] for alert in alerts}:
            wrong.append(f"{name}: {sorted(rules.keys() ^ names)}")
        text = json.dumps(groups)
        wrong += [f"{name}: {place} is left" for place in re.findall("@[A-Z]+@", text)]
        wrong += [f"{name}: no rule has {part}" for part in (f'job=\\"{job}\\"', f'daemonset=~\\"{sets}(-.+)?\\"', f"{sets}-.+")
                  if part not in text]
        of_alerts = [rule for key, rule in rules.items() if key != "gpus"]
        links = [rule["annotations"].get("runbook_url") for rule in of_alerts]
        base = "https://docs.example.com/longshore/docs/" if left_out else None
        if not all(link.startswith(base) and "//" not in link.removeprefix(base) if base else link is None for link in links):
            wrong.append(f"{name}: links {links}")
        if left_out and any(rule["labels"].get("team") != "gpu" or "severity" not in rule["labels"] for rule in of_alerts):
            wrong.append(f"{name}: labels of the alerts")
    if wrong:
        raise SystemExit("; ".join(wrong))


def probes(path):
    """Fails where a probe of a manifest is another one than the agent's own command: an address of the node could be held
    by another program."""
    for daemonset in daemonsets(documents(path)):
        container = daemonset["spec"]["template"]["spec"]["containers"][0]
        for name, option in (("startupProbe", "--alive"), ("livenessProbe", "--alive"), ("readinessProbe", "--ready")):
            handlers = container[name].keys() - {"periodSeconds", "timeoutSeconds", "failureThreshold",
                                                 "initialDelaySeconds", "successThreshold"}
            if handlers != {"exec"} or container[name]["exec"]["command"] != ["longshore", "status", option]:
                raise SystemExit(f"{path}: {name} is {container[name]}")


CONTROL_PLANE = "node-role.kubernetes.io/control-plane"


def control_plane(path, wanted):
    """Fails where the pods run on nodes of the control plane, by their required node affinity, and `wanted` is `no`, or
    the other way round."""
    for daemonset in daemonsets(documents(path)):
        affinity = daemonset["spec"]["template"]["spec"].get("affinity", {}).get("nodeAffinity", {})
        terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [{}])
        apart = {"key": CONTROL_PLANE, "operator": "DoesNotExist"}
        # Terms are alternatives.
        found = "no" if all(apart in term.get("matchExpressions", []) for term in terms) else "yes"
        if found != wanted:
            raise SystemExit(f"{path}: on nodes of the control plane: {found}, by {affinity}")


def environment(path, into):
    """Writes the variables of each DaemonSet's agent, and of the builder, to the file `into`/NUMBER/environment, each ended by a 0 byte, and
    its configuration to config.toml beside it."""
    found = documents(path)
    builders = [one for (kind, name), one in found.items() if kind == "Deployment" and name.endswith("-builder")]
    for number, one in enumerate(daemonsets(found) + builders):
        spec = one["spec"]["template"]["spec"]
        given = {one["name"]: one["value"] for one in spec["containers"][0]["env"] if "value" in one}
        place = pathlib.Path(into, str(number))
        place.mkdir()
        place.joinpath("environment").write_text("".join(f"{name}={value}\0" for name, value in given.items()), "utf-8")
        place.joinpath("config.toml").write_text(config_of(spec, found), "utf-8")


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


DOCTOR = """# `longshore doctor` once on one node whose agent has ended, with the mounts and settings of the DaemonSet in
# {0}, of which `scripts/check-chart --write` makes it. Where the chart has other values,
# `longshore fleet doctor NODE` takes those of the cluster's own DaemonSet.
#   sed s/NODE_TO_DIAGNOSE/gpu-1/ deploy/kubernetes/doctor.yaml | kubectl create --filename -
#   kubectl --namespace longshore wait job longshore-doctor \\
#     --for jsonpath='{{.status.conditions[0].status}}'=True --timeout 6m
#   kubectl --namespace longshore logs job/longshore-doctor
#   kubectl --namespace longshore delete job longshore-doctor     # without it, ten minutes after its end
"""


def without_token(of_pod):
    """Returns volumes or mounts without that of the token, which a diagnosis does not need."""
    return [one for one in of_pod if one["name"] != "api-access"]


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
        **{key: of_set[key] for key in ("serviceAccountName", "automountServiceAccountToken", "hostPID", "hostNetwork",
                                        "dnsPolicy", "enableServiceLinks", "tolerations")},
        # None of the names by which agents' pods are found: agent/src/cluster/mod.rs.
        "containers": [{"name": "doctor", **{key: container[key] for key in same}, "command": ["longshore"], "args": ["doctor"],
                        "env": env, "volumeMounts": without_token(container["volumeMounts"])}],
        "volumes": without_token(of_set["volumes"]),
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


CHECKS = {check.__name__: check for check in (equal, policies_first, pod, pools, monitoring, probes, control_plane,
                                          environment, written_out, doctor, kubectl)}

if __name__ == "__main__":
    CHECKS[sys.argv[1]](*sys.argv[2:])
