"""Answers of the ValidatingAdmissionPolicies of a manifest, by CEL's own evaluator with the libraries that Kubernetes has:
for each field an allowed and a refused request. scripts/check-chart runs it.

    policies.py PAGE ACCOUNT=SERVICE-ACCOUNT...    ACCOUNT: agent, evictor, clean or operator; CASES has the requests
"""

import copy
import sys

import yaml
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

OWN = "authentication.kubernetes.io/"
NODE = {
    "apiVersion": "v1", "kind": "Node",
    "metadata": {
        "name": "n1", "uid": "u", "resourceVersion": "7", "creationTimestamp": "2026-11-23T03:00:00Z",
        "managedFields": [{"manager": "kubelet"}], "finalizers": ["example.com/f"],
        "labels": {"kubernetes.io/hostname": "n1", "node-restriction.kubernetes.io/tenant": "a",
                   "longshore.dev/state": "ready", "longshore.dev/flavour": "open"},
        "annotations": {"node.alpha.kubernetes.io/ttl": "0", "longshore.dev/status": "{}"},
    },
    "spec": {"podCIDR": "10.0.0.0/24", "providerID": "p", "taints": [{"key": "example.com/t", "effect": "NoSchedule"}]},
    "status": {"capacity": {"cpu": "8"}, "nodeInfo": {"kernelVersion": "6.12.1"}, "conditions": [
        {"type": "Ready", "status": "True"}, {"type": "GpuDriverReady", "status": "False"}]},
}
OWN_TAINT = {"key": "longshore.dev/driver-not-ready", "effect": "NoSchedule"}
(OTHER_TAINT,) = NODE["spec"]["taints"]
READY, DRIVER = NODE["status"]["conditions"]
SAFE_LOAD = "nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load"
EVENT = {"metadata": {"name": "e"}, "reportingController": "longshore.dev/agent", "reportingInstance": "driver-x",
         "regarding": {"kind": "Node", "name": "n1"}}


def labels(**values):
    """A merge patch of labels, with _ for the / of longshore's; None removes one."""
    return {"metadata": {"labels": {f"longshore.dev/{name.replace('_', '-')}": value for name, value in values.items()}}}


def annotations(values):
    return {"metadata": {"annotations": values}}


def of_status(**values):
    return {"status": values}


def patched(old, patch):
    """Returns an object after a merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    new = dict(copy.deepcopy(old)) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = patched(new.get(key), value)
    return new


ASKED = patched(NODE, annotations({"longshore.dev/evict-request": "{}"}))
CORDONED = patched(ASKED, {"spec": {"unschedulable": True}, **annotations({"longshore.dev/cordoned": "{}"})})
FOREIGN = patched(NODE, {"spec": {"unschedulable": True}})
LEFT = patched(CORDONED, {"spec": {"taints": [OTHER_TAINT, OWN_TAINT]}, **annotations({SAFE_LOAD: "longshore: driver in use"})})
CORDON, UNCORDON = {"spec": {"unschedulable": True}}, {"spec": {"unschedulable": None}}
ANNOTATION, LABEL = "these annotations of a node: ", "these labels of a node: "
METADATA, SPEC, STATUS = (f"these fields of a node's {part}: " for part in ("metadata", "spec", "status"))
TAINT, CONDITION = "may change the taint", "may change the condition"

# What any account but the evictor and the clean-up may not change of a node, with words of the refusal.
NOT_OF_AGENTS = [
    (NODE, CORDON, SPEC + "unschedulable"),
    (FOREIGN, UNCORDON, SPEC + "unschedulable"),
    (CORDONED, UNCORDON, SPEC + "unschedulable"),
    (NODE, annotations({"longshore.dev/cordoned": "{}"}), ANNOTATION + "longshore.dev/cordoned"),
    (CORDONED, annotations({"longshore.dev/cordoned": None}), ANNOTATION + "longshore.dev/cordoned"),
    (NODE, annotations({"longshore.dev/evictions": "{}"}), ANNOTATION + "longshore.dev/evictions"),
]
# What no account may change.
OF_NOBODY = [
    (NODE, {"metadata": {"labels": {"node-restriction.kubernetes.io/tenant": "b"}}}, LABEL + "node-restriction."),
    (NODE, {"metadata": {"labels": {"node-restriction.kubernetes.io/tenant": None}}}, LABEL + "node-restriction."),
    (NODE, {"metadata": {"labels": {"node-restriction.kubernetes.io/x": "b"}}}, LABEL + "node-restriction."),
    (NODE, {"metadata": {"labels": {"kubernetes.io/hostname": "n2"}}}, LABEL + "kubernetes.io/hostname"),
    (NODE, {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}}, LABEL + "nvidia.com/gpu.present"),
    (NODE, {"metadata": {"labels": None}}, LABEL),
    (NODE, labels(pool="a"), LABEL + "longshore.dev/pool"),
    (NODE, annotations({"node.alpha.kubernetes.io/ttl": "1"}), ANNOTATION + "node.alpha.kubernetes.io/ttl"),
    (NODE, annotations({"node.alpha.kubernetes.io/ttl": None}), ANNOTATION + "node.alpha.kubernetes.io/ttl"),
    (NODE, {"metadata": {"finalizers": None}}, METADATA + "finalizers"),
    (NODE, {"metadata": {"finalizers": ["example.com/g"]}}, METADATA + "finalizers"),
    (NODE, {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}]}}, METADATA + "ownerReferences"),
    (NODE, {"spec": {"podCIDR": "10.0.1.0/24"}}, SPEC + "podCIDR"),
    (NODE, {"spec": {"providerID": None}}, SPEC + "providerID"),
    (NODE, {"spec": {"externalID": "x"}}, SPEC + "externalID"),
    (NODE, {"spec": {"taints": []}}, (TAINT, SPEC + "taints")),
    (NODE, {"spec": {"taints": None}}, (TAINT, SPEC + "taints")),
    (NODE, {"spec": {"taints": [{**OTHER_TAINT, "effect": "NoExecute"}]}}, (TAINT, SPEC + "taints")),
    (NODE, {"spec": {"taints": [OTHER_TAINT, {**OTHER_TAINT, "key": "example.com/u"}]}}, (TAINT, SPEC + "taints")),
    (NODE, of_status(capacity={"nvidia.com/gpu": "8"}), STATUS + "capacity"),
    (NODE, of_status(nodeInfo={"kernelVersion": "6.12.2"}), STATUS + "nodeInfo"),
    (NODE, of_status(addresses=[{"type": "InternalIP", "address": "10.0.0.9"}]), STATUS + "addresses"),
    (NODE, of_status(conditions=[{**READY, "status": "False"}, DRIVER]), (CONDITION, STATUS + "conditions")),
    (NODE, of_status(conditions=[DRIVER]), (CONDITION, STATUS + "conditions")),
    (NODE, of_status(conditions=[READY, DRIVER, {"type": "DiskPressure", "status": "True"}]),
     (CONDITION, STATUS + "conditions")),
]
OWN_CONDITION = [
    (NODE, of_status(conditions=[READY, {**DRIVER, "status": "True"}]), "allowed"),
    (NODE, of_status(conditions=[DRIVER, READY]), "allowed"),
    (NODE, of_status(conditions=[READY]), "allowed"),
    (patched(NODE, of_status(conditions=None)), of_status(conditions=[DRIVER]), "allowed"),
]
# Written by crates/cluster/src/report/calls.rs, safe_load/node.rs and the requests for an eviction.
OF_AGENT = [
    (NODE, labels(driver_version="550.163.01", flavour="proprietary", state="changing", next_kernel="ready"), "allowed"),
    (NODE, labels(flavour=None, state=None), "allowed"),
    (patched(NODE, {"metadata": {"labels": None, "annotations": None}}), labels(state="ready"), "allowed"),
    (NODE, annotations({"longshore.dev/status": '{"format":1}'}), "allowed"),
    (NODE, annotations({"longshore.dev/evict-request": "{}"}), "allowed"),
    (ASKED, annotations({"longshore.dev/evict-request": None}), "allowed"),
    (NODE, annotations({SAFE_LOAD: "longshore: driver in use"}), "allowed"),
    (LEFT, annotations({SAFE_LOAD: None}), "allowed"),
    (NODE, {"metadata": {"resourceVersion": "8", "managedFields": [], "generation": 2}}, "allowed"),
    (NODE, {"spec": {"taints": [OTHER_TAINT, OWN_TAINT]}}, "allowed"),
    (LEFT, {"spec": {"taints": [OTHER_TAINT]}}, "allowed"),
    (patched(NODE, {"spec": {"taints": None}}), {"spec": {"taints": [OWN_TAINT]}}, "allowed"),
    *OWN_CONDITION, *NOT_OF_AGENTS, *OF_NOBODY,
]
OF_OPERATOR = [
    *OWN_CONDITION, *NOT_OF_AGENTS, *OF_NOBODY,
    # Its rights on nodes themselves are the operator's; by the status none of them is used.
    (NODE, labels(state="changing"), LABEL + "longshore.dev/state"),
    (NODE, annotations({"longshore.dev/status": "x"}), ANNOTATION + "longshore.dev/status"),
    (NODE, {"spec": {"taints": [OTHER_TAINT, OWN_TAINT]}}, SPEC + "taints"),
]
NOT_ASKED, NOT_ITS_OWN = "may not cordon a node whose agent does not ask for it", "may not uncordon a node that it has not"
OF_EVICTOR = [
    (ASKED, {**CORDON, **annotations({"longshore.dev/cordoned": "{}"})}, "allowed"),
    (ASKED, annotations({"longshore.dev/evictions": '{"left":[]}'}), "allowed"),
    (CORDONED, {**UNCORDON, **annotations({"longshore.dev/cordoned": None})}, "allowed"),
    (CORDONED, {"spec": {"unschedulable": False}, **annotations({"longshore.dev/cordoned": None})}, "allowed"),
    (patched(CORDONED, UNCORDON), annotations({"longshore.dev/cordoned": None}), "allowed"),
    (NODE, CORDON, NOT_ASKED),
    (NODE, {**CORDON, **annotations({"longshore.dev/cordoned": "{}"})}, NOT_ASKED),
    (FOREIGN, UNCORDON, NOT_ITS_OWN),
    (FOREIGN, annotations({"longshore.dev/cordoned": "{}"}), "may not claim a cordon"),
    (ASKED, annotations({"longshore.dev/cordoned": "{}"}), "may not claim a cordon"),
    (CORDONED, annotations({"longshore.dev/cordoned": '{"pod":"a/b"}'}), "allowed"),
    (NODE, annotations({"longshore.dev/status": "x"}), ANNOTATION + "longshore.dev/status"),
    (ASKED, annotations({"longshore.dev/evict-request": None}), ANNOTATION + "longshore.dev/evict-request"),
    (NODE, labels(state="changing"), LABEL + "longshore.dev/state"),
    (NODE, {"spec": {"taints": [OTHER_TAINT, OWN_TAINT]}}, SPEC + "taints"),
    (NODE, of_status(conditions=[READY]), STATUS + "conditions"),
    *OF_NOBODY,
]
OF_CLEAN = [
    (LEFT, {"spec": {"unschedulable": None, "taints": [OTHER_TAINT]},
            "metadata": {"labels": {"longshore.dev/state": None, "longshore.dev/flavour": None}, "annotations": {
                "longshore.dev/status": None, "longshore.dev/cordoned": None, "longshore.dev/evict-request": None,
                SAFE_LOAD: None}}}, "allowed"),
    (NODE, of_status(conditions=[READY]), "allowed"),
    (NODE, CORDON, "may not cordon a node"),
    (FOREIGN, UNCORDON, NOT_ITS_OWN),
    (NODE, labels(state="idle"), LABEL + "longshore.dev/state"),
    (NODE, annotations({"longshore.dev/status": "x"}), ANNOTATION + "longshore.dev/status"),
    *OF_NOBODY,
]
# Operation, object before, object, answer. Events name the pod; in the operator's pods, which do not know it, the node.
ELSEWHERE = {**EVENT, "reportingController": "kubelet"}
ANOTHERS = {**EVENT, "reportingInstance": "driver-y"}
SERIES = {"series": {"count": 2}}
EVENTS = [
    ("CREATE", None, EVENT, "allowed"),
    ("CREATE", None, {**EVENT, "regarding": {"kind": "Pod", "name": "p"}}, "allowed"),
    ("UPDATE", EVENT, {**EVENT, **SERIES}, "allowed"),
    ("CREATE", None, ELSEWHERE, "may write events of"),
    ("CREATE", None, ANOTHERS, "may write events of"),
    ("CREATE", None, {"metadata": {"name": "e"}}, "may write events of"),
    ("UPDATE", ELSEWHERE, EVENT, "may change events of"),
    ("UPDATE", ANOTHERS, EVENT, "may change events of"),
    ("UPDATE", ELSEWHERE, {**ELSEWHERE, **SERIES}, "may write events of"),
    ("CREATE", None, {**EVENT, "regarding": {"kind": "Node", "name": "n2"}}, "about pods and the own node alone"),
    ("CREATE", None, {**EVENT, "regarding": {"kind": "Secret", "name": "n1"}}, "about pods and the own node alone"),
    ("CREATE", None, patched(EVENT, {"regarding": None}), "about pods and the own node alone"),
]
BUILD, LEADER = ({"metadata": {"name": name}} for name in ("longshore-build-0123456789abcdef", "53822513.nvidia.com"))
LEASES = [
    *((operation, old and lease, new and lease, answer) for lease, answer in ((BUILD, "allowed"), (LEADER, "alone"))
      for operation, old, new in (("CREATE", False, True), ("UPDATE", True, True), ("DELETE", True, False))),
    ("CREATE", None, {"metadata": {"name": "a-longshore-build-0"}}, "alone"),
]
# Account: requests about a node, the subresource that they change or None for both, and the rest.
CASES = {
    "agent": (OF_AGENT, None, {"events": EVENTS, "leases": LEASES}),
    "operator": (OF_OPERATOR, "nodes/status", {
        "events": [*EVENTS, ("CREATE", None, {**EVENT, "reportingInstance": "n1"}, "allowed")], "leases": LEASES}),
    "evictor": (OF_EVICTOR, None, {}),
    "clean": (OF_CLEAN, None, {}),
}
NODE_BOUND = ("agent", "operator")
GROUPS = {"nodes": "", "nodes/status": "", "events": "events.k8s.io", "leases": "coordination.k8s.io"}


class Policies:
    """Policies of a manifest that have a binding which denies."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            found = [one for one in yaml.safe_load_all(file) if one]
        bound = {one["spec"]["policyName"] for one in found if one["kind"] == "ValidatingAdmissionPolicyBinding"
                 and one["spec"]["validationActions"] == ["Deny"] and not one["spec"].get("matchResources")}
        self.specs = [one["spec"] for one in found if one["kind"] == "ValidatingAdmissionPolicy"
                      and one["metadata"]["name"] in bound]
        extensions = [ext_optional.ExtOptional(), ext_strings.ExtStrings()]
        names = ("request", "object", "oldObject", "variables")
        self.env = cel.NewEnv(variables={name: cel.Type.DYN for name in names}, extensions=extensions)
        self.compiled = {}
        self.unused = {one["expression"] for spec in self.specs for one in spec["validations"]}

    def value(self, expression, data):
        if expression not in self.compiled:
            self.compiled[expression] = self.env.compile(expression)
        found = self.compiled[expression].eval(data=data)
        if found.type() == cel.Type.ERROR:
            raise ValueError(f"{expression}: {found.value()}")
        return found.plain_value()

    def matching(self, user, resource, operation):
        """Yields the policies for a request of this user."""
        for spec in self.specs:
            rules = spec["matchConstraints"]["resourceRules"]
            if any(resource in rule["resources"] and operation in rule["operations"] and GROUPS[resource] in rule["apiGroups"]
                   for rule in rules):
                data = {"request": {"userInfo": {"username": user}}}
                if all(self.value(one["expression"], data) for one in spec["matchConditions"]):
                    yield spec

    def answer(self, user, extra, resource, operation, old, new):
        """Returns `allowed`, the first refusal's message, or `no policy`."""
        specs = list(self.matching(user, resource, operation))
        for spec in specs:
            request = {"userInfo": {"username": user, "extra": extra}, "operation": operation}
            data = {"request": request, "object": new, "oldObject": old, "variables": {}}
            for one in spec.get("variables", []):
                data["variables"][one["name"]] = self.value(one["expression"], data)
            for one in spec["validations"]:
                if not self.value(one["expression"], data):
                    self.unused.discard(one["expression"])
                    message = one.get("message") or self.value(one["messageExpression"], data)
                    assert message and "\n" not in message, message
                    return message
        return "allowed" if specs else "no policy"


def difference(old, new, place=""):
    """Returns what differs between two objects, for a message."""
    if isinstance(old, dict) and isinstance(new, dict):
        inner = (difference(old.get(key), new.get(key), f"{place}.{key}") for key in sorted(old.keys() | new.keys()))
        return " ".join(text for text in inner if text)
    return "" if old == new else f"{place}: {old} to {new}"


def requests(account):
    """Yields resource, operation, object before, object, words of the answer."""
    nodes, subresource, others = CASES[account]
    for old, patch, answer in nodes:
        for resource in [subresource] if subresource else ["nodes", "nodes/status"]:
            yield resource, "UPDATE", old, patched(old, patch), answer
    for resource, cases in others.items():
        for operation, old, new, answer in cases:
            yield resource, operation, old or None, patched(new, {}) if new else None, answer


def main(path, *accounts):
    """Compares all answers; prints their number."""
    policies = Policies(path)
    tried, wrong = 0, []
    extra = {OWN + "node-name": ["n1"], OWN + "pod-name": ["driver-x"]}

    def expect(user, extra, resource, operation, old, new, words):
        nonlocal tried
        tried += 1
        try:
            answer = policies.answer(user, extra, resource, operation, old, new)
        except ValueError as error:
            answer = f"error: {error}"
        if not any(word == answer if word in ("allowed", "no policy") else word in answer
                   for word in (words if isinstance(words, tuple) else (words,))):
            wrong.append(f"{user} {extra}: {operation} {resource} {difference(old, new)}: {answer}, not {words}")

    for account, user in (one.split("=") for one in accounts):
        resources = {}
        for case in requests(account):
            expect(user, extra, *case)
            resources.setdefault(case[0], case[1:4])
        for resource, (operation, old, new) in resources.items():
            # Another account has no policy of this one, and the kubelet none.
            for other in (user + "r", user.replace("serviceaccount:", "serviceaccount:x"), "system:node:n1", "admin"):
                expect(other, extra, resource, operation, old, new, "no policy")
            if account in NODE_BOUND and resource != "leases":
                for missing in ({}, {OWN + "pod-name": ["driver-x"]}):
                    expect(user, missing, resource, operation, old, new, "so that")
                # No server makes such a token; failurePolicy denies what cannot be evaluated.
                expect(user, {OWN + "node-name": []}, resource, operation, old, new, "error")
                for node in ("n2", "n10", "n"):
                    words = "may not change node n1" if resource != "events" else "about pods and the own node alone"
                    expect(user, {**extra, OWN + "node-name": [node]}, resource, operation, old, new, words)
    if policies.unused:
        wrong.append(f"no request is refused by {sorted(policies.unused)}")
    if wrong:
        raise SystemExit(f"{path}: {len(wrong)} answers: " + "\n".join(wrong[:10]))
    print(tried)


if __name__ == "__main__":
    main(*sys.argv[1:])
