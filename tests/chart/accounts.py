"""Rights of each account of the chart and the manifests: the table in docs/cluster/kubernetes.md with a worst use of each,
and the admission policies that restrict them. scripts/check-chart runs it.

    accounts.py write|check HELM CHART PAGE RIGHTS    writes or compares the table, of the chart and the operator's rights
    accounts.py listed MANIFEST...                    fails where a manifest has a right that the table has not
    accounts.py bound MANIFEST...                     fails where an account has a right on nodes, events or leases that no
                                                      policy of the same file restricts
    accounts.py values                                prints the values of the table
"""

import pathlib
import subprocess
import sys

import yaml

LIST = pathlib.Path("tests/chart/accounts.list")
NO_RIGHTS = "tests/chart/no-rights.yaml"
BEGIN, END = "<!-- rights: begin -->", "<!-- rights: end -->"
HEAD = ["Account", "Value, hook or file", "Scope", "API group", "Resource", "Verbs", "Reason", "Worst use by one taken node"]
VERBS = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]
# Accounts that are there with tests/chart/every-value.yaml, and their values or hooks.
OF_EVERY = {"builder": "builder.enabled=true", "test": "test", "clean": "pre-delete"}
# Rights that change what others rely on, with the operations of the policy that restricts them.
RESTRICTED = {("core", "nodes"): {"patch": "UPDATE", "update": "UPDATE", "create": "CREATE", "delete": "DELETE"},
              ("core", "nodes/status"): {"patch": "UPDATE", "update": "UPDATE"},
              ("events.k8s.io", "events"): {"create": "CREATE", "patch": "UPDATE", "update": "UPDATE", "delete": "DELETE"},
              ("core", "events"): {"create": "CREATE", "patch": "UPDATE", "update": "UPDATE", "delete": "DELETE"},
              ("coordination.k8s.io", "leases"): {"create": "CREATE", "update": "UPDATE", "patch": "UPDATE",
                                                  "delete": "DELETE"}}


def objects(text):
    """Returns the objects of a manifest."""
    return [one for one in yaml.safe_load_all(text) if one]


def rights_of(found):
    """Returns the rights of each account, by (namespace, name): a set of (scope, group, resource, verb)."""
    roles = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]): one.get("rules") or []
             for one in found if one["kind"] in ("Role", "ClusterRole")}
    rights, bound = {}, set()
    for one in found:
        if not one["kind"].endswith("RoleBinding"):
            continue
        scope = {"RoleBinding": "own namespace", "ClusterRoleBinding": "cluster"}[one["kind"]]
        role = one["roleRef"]["kind"]
        key = (role, one["metadata"].get("namespace") if role == "Role" else None, one["roleRef"]["name"])
        if key not in roles:
            raise SystemExit(f"{one['kind']} {one['metadata']['name']} binds {key}, which the file has not")
        bound.add(key)
        for subject in one["subjects"]:
            if subject["kind"] != "ServiceAccount":
                raise SystemExit(f"{one['kind']} {one['metadata']['name']} binds {subject}, which is no service account")
            of_account = rights.setdefault((subject["namespace"], subject["name"]), set())
            for rule in roles[key]:
                named = " of the release, by name" if "resourceNames" in rule else ""
                if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"] or "nonResourceURLs" in rule:
                    raise SystemExit(f"{key}: {rule} names not each right")
                of_account |= {(scope, group or "core", resource + named, verb) for group in rule["apiGroups"]
                               for resource in rule["resources"] for verb in rule["verbs"]}
    if roles.keys() != bound:
        raise SystemExit(f"roles that nothing binds: {sorted(roles.keys() - bound)}")
    return rights


def account_of(name):
    """Returns the table's name of a service account."""
    for ending in ("evictor", "builder", "test", "clean"):
        if name.endswith(f"-{ending}"):
            return ending
    return "operator" if name == "nvidia-driver" else "agent"


def by_account(found):
    """Returns the rights of each account by its name in the table."""
    made = {}
    for (_, name), rights in rights_of(found).items():
        made.setdefault(account_of(name), set()).update(rights)
    return made


def rows():
    """Returns the lines of the list, each as its eight cells."""
    lines = [line for line in LIST.read_text("utf-8").splitlines() if line and not line.startswith("#")]
    made = [line.split("; ", 7) for line in lines]
    if any(len(cells) != 8 for cells in made):
        raise SystemExit(f"{LIST}: not eight cells: {[cells for cells in made if len(cells) != 8]}")
    return made


def of_cells(cells):
    """Returns the rights that a line names."""
    _, _, scope, group, resource, verbs, *_ = cells
    return {(scope, group, resource, verb) for verb in verbs.split(", ")}


def documented():
    """Returns the rights of the agent for each value, alone and with the others that it names."""
    table = {}
    for cells in rows():
        if cells[0] == "agent":
            table.setdefault(cells[1], set()).update(of_cells(cells))
    for value in table:
        for part in value.split(","):
            table[value] = table[value] | table.get(part, set())
    return table


def rendered(helm, chart, *options):
    """Returns the objects of the chart with these options."""
    ran = subprocess.run([helm, "template", "longshore", chart, "--namespace", "longshore", *options], capture_output=True,
                         text=True, check=False)
    if ran.returncode != 0:
        raise SystemExit(f"{options}: {ran.stderr.strip()}")
    return objects(ran.stdout)


def found_rights(helm, chart, operator):
    """Yields account, value, and rights, by the chart's own rendering."""
    render = lambda *options: by_account(rendered(helm, chart, "--values", NO_RIGHTS, *options))
    if render():
        raise SystemExit(f"rights that no value needs: {render()}")
    alone = {}
    for value in dict.fromkeys(cells[1] for cells in rows() if cells[0] == "agent"):
        parts = value.split(",")
        made = render(*(option for part in parts for option in ("--set", part)))
        alone[value] = made
        for account, rights in made.items():
            before = set().union(*(alone.get(part, {}).get(account, set()) for part in parts if part != value))
            if rights - before:
                yield account, value, rights - before
    every = by_account(rendered(helm, chart, "--values", "tests/chart/every-value.yaml", "--set", "fullnameOverride=longshore"))
    for account, value in OF_EVERY.items():
        yield account, value, every[account]
    yield "operator", "rights.yaml", by_account(objects(pathlib.Path(operator).read_text("utf-8")))["operator"]


def table(command, helm, chart, page, operator):
    """Writes or compares the table of a page."""
    wanted, found = set(), set()
    for cells in rows():
        wanted |= {(*cells[:2], *right) for right in of_cells(cells)}
        if cells[5].split(", ") != sorted(cells[5].split(", "), key=VERBS.index) and cells[3] == "core":
            raise SystemExit(f"{LIST}: verbs are not in order: {cells}")
    for account, value, rights in found_rights(helm, chart, operator):
        found |= {(account, value, *right) for right in rights}
    if found != wanted:
        raise SystemExit(f"{LIST}: rights without a line: {sorted(found - wanted)}; lines without a right: "
                         f"{sorted(wanted - found)}")
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for account, value, *others in rows():
        value = " with ".join(f"`{part}`" for part in reversed(value.split(",")))
        lines.append("| " + " | ".join([account, value, *others]) + " |")
    text = pathlib.Path(page).read_text("utf-8")
    head, rest = text.split(BEGIN)
    made = f"{head}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{rest.split(END)[1]}"
    if command == "write":
        pathlib.Path(page).write_text(made, "utf-8")
    elif made != text:
        raise SystemExit(f"{page}: the table of rights is not that of {LIST}: scripts/check-chart --write")


def listed(*manifests):
    """Fails where an account of a manifest has a right that the table has not."""
    known = {}
    for cells in rows():
        known.setdefault(cells[0], set()).update(of_cells(cells))
    for manifest in manifests:
        for account, rights in by_account(objects(pathlib.Path(manifest).read_text("utf-8"))).items():
            if rights - known.get(account, set()):
                raise SystemExit(f"{manifest}: {account} has rights without a line in {LIST}: "
                                 f"{sorted(rights - known.get(account, set()))}")


def restricts(found, user, group, resource, operation):
    """True where a policy with a binding that denies covers such requests of this user."""
    bound = {one["spec"]["policyName"] for one in found if one["kind"] == "ValidatingAdmissionPolicyBinding"
             and one["spec"] == {"policyName": one["spec"]["policyName"], "validationActions": ["Deny"]}}
    for one in found:
        if one["kind"] != "ValidatingAdmissionPolicy" or one["metadata"]["name"] not in bound:
            continue
        spec = one["spec"]
        conditions = [condition["expression"] for condition in spec["matchConditions"]]
        rules = spec["matchConstraints"]["resourceRules"]
        if spec["failurePolicy"] == "Fail" and conditions == [f'request.userInfo.username == "{user}"'] and any(
                ("" if group == "core" else group) in rule["apiGroups"] and resource in rule["resources"]
                and operation in rule["operations"] for rule in rules):
            return True
    return False


def bound(*manifests):
    """Fails where an account may change nodes, events or leases, and no policy of the same file restricts that."""
    for manifest in manifests:
        found = objects(pathlib.Path(manifest).read_text("utf-8"))
        for (namespace, name), rights in rights_of(found).items():
            if name == "default":
                raise SystemExit(f"{manifest}: rights for the account `default`, which any pod of the namespace may have")
            for _, group, resource, verb in sorted(rights):
                operation = RESTRICTED.get((group, resource), {}).get(verb)
                user = f"system:serviceaccount:{namespace}:{name}"
                if operation and not restricts(found, user, group, resource, operation):
                    raise SystemExit(f"{manifest}: {name} may {verb} {resource} of {group}, and no policy restricts that")


def values():
    """Prints the values of the table."""
    print("\n".join(sorted(documented())))


if __name__ == "__main__":
    COMMAND, *GIVEN = sys.argv[1:]
    if COMMAND in ("write", "check"):
        table(COMMAND, *GIVEN)
    else:
        {"listed": listed, "bound": bound, "values": values}[COMMAND](*GIVEN)
