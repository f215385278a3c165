#!/usr/bin/env python3
"""Checks of the alerts and the dashboard (deploy/helm/longshore/files) against the metrics that the agent exports.

  check.py PROMTOOL             checks, and prints one line
  check.py PROMTOOL --refuses   checks copies with one fault each, and fails where one of them passes

Names and labels are those of tests/monitoring/exposition.txt, which a test of the agent compares with its code. Every
query of the dashboard is evaluated by Prometheus' own engine over that exposition, and has to have a result.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
ALERTS = "deploy/helm/longshore/files/alerts.yaml"
DASHBOARD = "deploy/helm/longshore/files/dashboard.json"
CASES = "tests/monitoring/alerts-test.yaml"
EXPOSITION = "tests/monitoring/exposition.txt"
PAGE = "docs/operate/observability.md"
FILES = [ALERTS, DASHBOARD, CASES, EXPOSITION, PAGE]

# Labels that Prometheus adds to every series of a target, as the chart's PodMonitor has it.
OF_TARGET = {"job": "@JOB@", "instance": "10.0.0.1:9470", "node": "gpu-1", "namespace": "longshore", "pod": "longshore-x7k2p",
             "container": "longshore", "endpoint": "metrics"}
# Series of other exporters (kube-state-metrics' docs/metrics), and Prometheus' own.
OF_OTHERS = {
    "up": set(),
    "kube_daemonset_status_number_ready": {"namespace", "daemonset"},
    "kube_daemonset_status_desired_number_scheduled": {"namespace", "daemonset"},
    "kube_node_status_condition": {"node", "condition", "status"},
    "kube_pod_container_status_waiting_reason": {"namespace", "pod", "container", "reason"},
}
SEVERITIES = ["critical", "warning", "info"]
PLACEHOLDERS = {"@JOB@", "@NAMESPACE@", "@DAEMONSET@", "@VERSION@", "@RUNBOOK@"}
PANELS = {"row", "stat", "table", "timeseries", "bargauge"}


class Fault(Exception):
    """A fault of one of the files."""


def require(holds, text):
    if not holds:
        raise Fault(text)


def exported(root):
    """Returns the labels of each metric of the exposition, and its samples."""
    labels, samples = {}, []
    for line in (root / EXPOSITION).read_text().splitlines():
        if line.startswith("#"):
            continue
        found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
        require(found, f"{EXPOSITION}: {line}")
        name, inside, value = found.groups()
        of_sample = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', inside or ""))
        labels.setdefault(name, set()).update(of_sample)
        samples.append((name, of_sample, float(value)))
    return labels, samples


def names_of(expression):
    """Returns the metrics of an expression, each with the labels that it selects by, and the labels of its groups."""
    bare = re.sub(r"#.*", "", expression)
    selected = {}
    for name, inside in re.findall(r"([A-Za-z_:][\w:]*)\s*\{([^}]*)\}", bare):
        selected.setdefault(name, set()).update(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", re.sub(r'"[^"]*"', '""', inside)))
    bare = re.sub(r"\{[^}]*\}", "", re.sub(r'"(?:[^"\\]|\\.)*"', "", re.sub(r"\[[^\]]*\]", "", bare)))
    groups = set()
    for inside in re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", bare):
        groups.update(label.strip() for label in inside.split(",") if label.strip())
    bare = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    words = re.findall(r"(?<![\w.])([A-Za-z_:][\w:]*)(?!\s*\()(?![\w:])", bare)
    keywords = {"and", "or", "unless", "offset", "bool", "inf", "nan", "Inf", "NaN"}
    names = {word for word in words if word not in keywords}
    return {name: selected.get(name, set()) for name in names}, groups


def check_expression(where, expression, known):
    names, groups = names_of(expression)
    require(names, f"{where}: no metric in {expression}")
    labels_of_all = set(OF_TARGET)
    for name, selected in names.items():
        require(name in known or name in OF_OTHERS, f"{where}: no agent exports {name}")
        labels = known[name] | set(OF_TARGET) if name in known else OF_OTHERS[name] | set(OF_TARGET)
        labels_of_all |= labels
        require(selected <= labels, f"{where}: {name} has no label {', '.join(sorted(selected - labels))}")
    require(groups <= labels_of_all, f"{where}: no metric has the label {', '.join(sorted(groups - labels_of_all))}")


def anchors(path):
    """Returns the anchors of a page's headings, as GitHub and GitLab make them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_address(alert, address):
    found = re.fullmatch(r"@RUNBOOK@/([\w/-]+\.md)#(.+)", address)
    require(found, f"{alert}: runbook_url is {address}, and not @RUNBOOK@/PAGE#ENTRY")
    page = ROOT / "docs" / found[1]
    require(page.is_file(), f"{alert}: there is no page docs/{found[1]}")
    if found[2] == "{{ $labels.code }}" and found[1] == "reference/errors.md":
        return
    require(found[2] in anchors(page), f"{alert}: docs/{found[1]} has no entry {found[2]}")


def rules_of(root):
    groups = yaml.safe_load((root / ALERTS).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def check_alerts(root, known):
    rules = rules_of(root)
    names = [rule.get("alert") for rule in rules]
    require(None not in names and len(set(names)) == len(names), f"{ALERTS}: a rule without a name of its own")
    for rule in rules:
        alert, labels, annotations = rule["alert"], rule.get("labels", {}), rule.get("annotations", {})
        require(labels.get("severity") in SEVERITIES, f"{alert}: severity is none of {', '.join(SEVERITIES)}")
        for key in ["summary", "description", "runbook_url"]:
            require(annotations.get(key), f"{alert}: no {key}")
        check_address(alert, annotations["runbook_url"])
        check_expression(alert, rule["expr"], known)
        about_agents = [name for name in names_of(rule["expr"])[0] if name in known]
        require(rule["expr"].count('job="@JOB@"') >= len(about_agents), f"{alert}: a metric without the job")
    text = (root / ALERTS).read_text()
    require(set(re.findall(r"@\w+@", text)) == PLACEHOLDERS, f"{ALERTS}: other placeholders than its head says")
    return rules


def check_cases(root, rules):
    fires, silent = set(), set()
    for test in yaml.safe_load((root / CASES).read_text())["tests"]:
        for case in test["alert_rule_test"]:
            (fires if case.get("exp_alerts") else silent).add(case["alertname"])
            require(test["input_series"], f"{CASES}: no series in a case of {case['alertname']}")
    for rule in rules:
        require(rule["alert"] in fires, f"{rule['alert']} has no case in which it fires")
        require(rule["alert"] in silent, f"{rule['alert']} has no case in which it is silent")
    unknown = (fires | silent) - {rule["alert"] for rule in rules}
    require(not unknown, f"{CASES}: cases of {', '.join(sorted(unknown))}, which is no alert")


def check_page(root, rules):
    """Compares the table of alerts in the page: name and severity, in the order of the rules."""
    rows = re.findall(r"^\| `(Longshore\w+)` \| (\w+) \| .+ \|$", (root / PAGE).read_text(), re.MULTILINE)
    wanted = [(rule["alert"], rule["labels"]["severity"]) for rule in rules]
    require(rows == wanted, f"{PAGE}: the table of alerts differs: {sorted(set(rows) ^ set(wanted)) or 'their order'}")


def check_command(root):
    """Runs the page's command that fills the placeholders in: none may be left."""
    found = re.search(r"^(sed -e .*?) >longshore-rules.yaml$", (root / PAGE).read_text(), re.MULTILINE | re.DOTALL)
    require(found, f"{PAGE}: no command for the rules")
    filled = run(["bash", "-c", found[1]], cwd=root)
    # The head of the file explains the placeholders.
    left = [line for line in filled.splitlines() if re.search(r"@[A-Z]+@", line) and not line.startswith("#")]
    require(not left, f"{PAGE}: its command leaves {left}")


def check_panel(panel, known):
    """Checks one panel; returns its queries."""
    title = panel["title"]
    require(panel["type"] in PANELS, f"panel {title}: its type is {panel['type']}")
    if panel["type"] == "row":
        require(not panel["collapsed"] and not panel["panels"], f"row {title}: collapsed")
        return []
    require(panel.get("description"), f"panel {title}: no description")
    require(panel["targets"], f"panel {title}: no query")
    for target in [panel, *panel["targets"]]:
        require(target["datasource"]["uid"] == "${datasource}", f"panel {title}: a data source of its own")
    queries = []
    for target in panel["targets"]:
        check_expression(f"panel {title}", target["expr"], known)
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            names = names_of(target["expr"])[0]
            labels = set().union(*(known.get(name, set()) for name in names)) | set(OF_TARGET)
            require(label in labels, f"panel {title}: its legend names the label {label}")
        queries.append((title, target["expr"]))
    return queries


def check_places(panels):
    """Checks that the panels are within 24 columns and do not overlap."""
    taken = {}
    for panel in panels:
        at = panel["gridPos"]
        require(at["x"] + at["w"] <= 24 and at["h"] > 0, f"panel {panel['title']}: outside of the grid")
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                other = taken.setdefault((x, y), panel["title"])
                require(other is panel["title"], f"panel {panel['title']} lies on {other}")


def check_dashboard(root, known):
    board = json.loads((root / DASHBOARD).read_text())
    for key in ["uid", "title", "schemaVersion", "templating", "panels", "time"]:
        require(board.get(key), f"{DASHBOARD}: no {key}")
    require("id" not in board, f"{DASHBOARD}: an id belongs to one Grafana")
    variables = [variable["name"] for variable in board["templating"]["list"]]
    require(variables == ["datasource", "job", "node", "instance"], f"{DASHBOARD}: the variables are {variables}")
    for variable in board["templating"]["list"][1:]:
        require(variable["datasource"]["uid"] == "${datasource}", f"variable {variable['name']}: a data source of its own")
        found = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["definition"])
        require(found and found[1] in known and found[2] in OF_TARGET, f"variable {variable['name']}: {variable['definition']}")
    panels = board["panels"]
    require(len({panel["id"] for panel in panels}) == len(panels), f"{DASHBOARD}: two panels with one id")
    check_places(panels)
    return [query for panel in panels for query in check_panel(panel, known)]


def quoted(value):
    return value.replace("\\", "\\\\").replace('"', '\\"')


def as_series(name, labels, value):
    """Returns a series of one hour; a counter grows with each minute."""
    inside = ", ".join(f'{label}="{quoted(of)}"' for label, of in {**OF_TARGET, **labels}.items())
    values = f"{value:g}+1x60" if name.endswith("_total") else f"{value:.17g}x60"
    return {"series": f"{name}{{{inside}}}", "values": values}


def evaluate(promtool, queries, samples, work):
    """Lets promtool evaluate each query: one that cannot be parsed, or has no result, fails."""
    series = [as_series(*sample) for sample in samples]
    series.append(as_series("up", {}, 0.0))
    cases = []
    for title, query in queries:
        query = re.sub(r"\$(job|node|instance)\b", ".*", query)
        require("$" not in query, f"panel {title}: an unknown variable in {query}")
        cases.append({"expr": f"count({query}) > bool 0", "eval_time": "50m", "exp_samples": [{"labels": "{}", "value": 1}]})
    test = {"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": cases}]}
    (work / "queries.yaml").write_text(yaml.safe_dump(test, width=10000))
    run([promtool, "test", "rules", str(work / "queries.yaml")])


def run(command, **options):
    ended = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    said = ended.stdout + ended.stderr
    require(ended.returncode == 0, f"{' '.join(command)}: {said}")
    return said


def check(root, promtool):
    """Checks the files below `root`; returns a line of counts."""
    known, samples = exported(root)
    rules = check_alerts(root, known)
    check_cases(root, rules)
    check_page(root, rules)
    check_command(root)
    queries = check_dashboard(root, known)
    with tempfile.TemporaryDirectory() as work:
        evaluate(promtool, queries, samples, pathlib.Path(work))
    run([promtool, "check", "rules", str(root / ALERTS)])
    run([promtool, "test", "rules", str(root / CASES)])
    with open(root / EXPOSITION, encoding="utf-8") as text:
        said = run([promtool, "check", "metrics"], stdin=text)
    require(not said, f"promtool check metrics: {said}")
    return f"{len(rules)} alerts, {len(queries)} queries of the dashboard, {len(known)} metrics"


# File, text, its replacement (the first one alone), words of the refusal.
FAULTS = [
    (DASHBOARD, "sum(longshore_ready{", "sum(longshore_readiness{", "no agent exports longshore_readiness"),
    (DASHBOARD, "count by (version) (longshore_wanted", "count by (release) (longshore_wanted", "no metric has the label release"),
    (DASHBOARD, 'severity=\\"refusal\\"', 'gravity=\\"refusal\\"', "longshore_finding has no label gravity"),
    (DASHBOARD, 'severity=\\"refusal\\"}) or vector(0)', 'severity=\\"error\\"})', "promtool test rules"),
    (DASHBOARD, "sum(longshore_ready{", "sum((longshore_ready{", "promtool test rules"),
    (DASHBOARD, '"legendFormat": "{{kernel}}"', '"legendFormat": "{{release}}"', "its legend names the label release"),
    (DASHBOARD, '"x": 3', '"x": 2', "lies on"),
    (DASHBOARD, '"uid": "${datasource}"', '"uid": "prometheus"', "a data source of its own"),
    (ALERTS, "expr: longshore_node_cordoned{", "expr: longshore_cordoned{", "no agent exports longshore_cordoned"),
    (ALERTS, 'origin="compiled"', 'source="compiled"', "longshore_driver_info has no label source"),
    (ALERTS, "runbook.md#stuck", "runbook.md#hangs", "has no entry hangs"),
    (ALERTS, "operate/store.md#", "operate/shop.md#", "there is no page"),
    (ALERTS, "severity: critical", "severity: page", "severity is none of"),
    (ALERTS, "alert: LongshoreStoreFull", "alert: LongshoreStoreLimit", "LongshoreStoreLimit has no case in which it fires"),
    (ALERTS, 'expr: longshore_change_held{job="@JOB@"} == 1', "expr: longshore_change_held == 1", "a metric without the job"),
    (ALERTS, "for: 2h", "for: 3h", "promtool test rules"),
    (ALERTS, "== 0\n        for: 10m", "= 0\n        for: 10m", "promtool"),
    (CASES, "        exp_alerts: []", "        exp_alerts: [{exp_labels: {}}]", "has no case in which it is silent"),
    (PAGE, "| `LongshoreAgentDown` | warning |", "| `LongshoreAgentDown` | critical |", "the table of alerts differs"),
    (PAGE, "s|@JOB@|longshore|g", "s|@JOB@|longshore|", "its command leaves"),
    (EXPOSITION, "\nlongshore_ready 1\n", "\nlongshore_state 1\n", "no agent exports longshore_ready"),
]


def check_refusals(promtool):
    for name, old, new, words in FAULTS:
        with tempfile.TemporaryDirectory() as copy:
            root = pathlib.Path(copy)
            for file in FILES:
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / file, root / file)
            text = (root / name).read_text()
            require(old in text, f"{name} has no {old}: the fault cannot be made")
            (root / name).write_text(text.replace(old, new, 1))
            try:
                check(root, promtool)
            except Fault as fault:
                require(words in str(fault), f"{name} with {new} is refused without the words {words}: {fault}")
                continue
            raise Fault(f"{name} passes with {new}")
    return f"{len(FAULTS)} faults refused"


def main():
    promtool, *options = sys.argv[1:]
    try:
        print("monitoring:", check_refusals(promtool) if options == ["--refuses"] else check(ROOT, promtool))
    except Fault as fault:
        sys.exit(f"monitoring: {fault}")


main()
