"""Keeps the results of benchmarks, and compares them with their targets.

    results.py record DIR NAME LOAD-BEFORE ARGUMENT... < OUTPUT   adds a line to DIR/NAME.jsonl
    results.py check DIR [NAME...]                                fails where the newest line of a benchmark misses a
                                                                  target, or has none; by default for every benchmark

A line is a JSON object: benchmark, arguments, began and ended (UTC), commit, whether the tree had other changes, processor,
cores, load before and after (one, five and fifteen minutes), kernel, ratios by name, and the output.
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

TARGETS = pathlib.Path(__file__).with_name("targets")
RATIO = re.compile(r"(?P<name>\S.*) ratio (?P<ratio>\d+(?:\.\d+)?)")


def fail(text):
    raise SystemExit(f"scripts/bench: {text}")


def targets():
    """Returns the targets: the most by ratio, by benchmark."""
    found = {}
    for line in TARGETS.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, rest = line.split(None, 1)
            ratio, most = rest.rsplit(None, 1)
            found.setdefault(name, {})[ratio.strip()] = float(most)
    return found


def git(*arguments):
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


def processor():
    """Returns the processor's name, as the kernel has it."""
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return "unknown"


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def ratios(output):
    """Returns the ratios of the lines `NAME ratio R`; a later line of a name replaces an earlier one."""
    found = {}
    for line in output.splitlines():
        match = RATIO.fullmatch(line.strip())
        if match:
            found[match["name"]] = float(match["ratio"])
    return found


def record(directory, name, before, arguments):
    began, load = before.split(" ", 1)
    output = sys.stdin.read()
    found = ratios(output)
    missing = sorted(targets().get(name, {}).keys() - found.keys())
    if missing:
        fail(f"{name} printed no ratio for {', '.join(missing)}: nothing is recorded")
    line = {
        "benchmark": name, "arguments": arguments, "began": began, "ended": now(), "commit": git("rev-parse", "HEAD"),
        "changed": bool(git("status", "--porcelain")), "processor": processor(), "cores": os.cpu_count(),
        "load": {"before": [float(word) for word in load.split()], "after": list(os.getloadavg())},
        "kernel": os.uname().release, "ratios": found, "output": output.splitlines(),
    }
    path = pathlib.Path(directory) / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(f"scripts/bench: recorded in {path}", file=sys.stderr)


def newest(directory, name):
    """Returns the last line of a benchmark's results; None without one."""
    path = pathlib.Path(directory) / f"{name}.jsonl"
    if not path.exists():
        return None
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        return None
    try:
        result = json.loads(lines[-1])
        {ratio: float(value) for ratio, value in result["ratios"].items()}
        if result["benchmark"] != name:
            raise ValueError(f"it is of {result['benchmark']}")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        fail(f"the last line of {path} cannot be read: {error!r}")
    return result


def check(directory, names):
    table = targets()
    unknown = [name for name in names if name not in table]
    if unknown:
        fail(f"there are no targets for {', '.join(unknown)}: {', '.join(table)} have some")
    missed = 0
    for name in names or table:
        result = newest(directory, name)
        if result is None:
            print(f"{name}: NO RESULT in {directory}")
            missed += 1
            continue
        changed = ", with other changes" if result.get("changed") else ""
        print(f"{name}, {result.get('began')}, commit {str(result.get('commit'))[:12]}{changed}, "
              f"{result.get('processor')}, {result.get('cores')} cores:")
        for ratio, most in table[name].items():
            value = result["ratios"].get(ratio)
            # Also for no number at all, NaN.
            met = value is not None and float(value) <= most
            missed += not met
            shown = "absent" if value is None else f"{float(value):.3f}".rstrip("0").rstrip(".")
            print(f"  {ratio} ratio {shown}, target {most:.2f}: {'met' if met else 'MISSED'}")
    print(f"{missed} missed" if missed else "all met")
    return 1 if missed else 0


def main(arguments):
    match arguments:
        case ["record", directory, name, before, *rest]:
            record(directory, name, before, rest)
            return 0
        case ["check", directory, *names]:
            return check(directory, names)
    fail("results.py: unknown arguments")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
