"""Writes results of a whole matrix, made up: two shards, a run before and a history, with hostile texts."""

import hashlib
import json
import pathlib
import sys

SUITES = [
    ("bullseye-security", None, "5.10.0-46", "10"),
    ("bullseye-security", "6.1", "6.1.0-0.deb11.52", "10"),
    ("bookworm-security", None, "6.1.0-56", "12"),
    ("bookworm-security", "6.12", "6.12.117+deb12", "12"),
    ("bookworm-backports", None, "6.12.95+deb12", "12"),
    ("trixie-security", None, "6.12.117+deb13", "14"),
    ("trixie-backports", None, "7.3.4+deb13", "14"),
    ("forky", None, "7.2.12", "16"),
    ("sid", None, "7.2.13+deb14", "16"),
]
DRIVERS = ["390-proprietary", "418-proprietary", "450-proprietary", "460-proprietary", "470-proprietary",
           "525-proprietary", "535-open", "535-proprietary", "550-open", "550-proprietary", "555-open",
           "555-proprietary"]
HOSTILE = "</script><script>document.title = 'owned'</script><img src=x onerror=alert(1)> \x1b[2J\u202e & \"'`|"


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def kernels():
    for suite, line, version, _ in SUITES:
        for flavour in ("generic", "cloud", "rt"):
            part = "" if flavour == "generic" else f"-{flavour}"
            state = "headers-missing" if line == "6.1" else "available"
            yield {
                "id": "-".join(filter(None, [suite, line, flavour])), "suite": suite, "line": line,
                "flavour": flavour, "release": f"{version}{part}-amd64", "version": f"{version}-1",
                "state": state,
            }


def drivers():
    for name in DRIVERS:
        branch, flavour = name.split("-")
        revision = {"package": "nvidia-kernel-source", "version": f"{branch}.163.01-5.1", "suite": "sid",
                    "sha256": sha(name)}
        yield {"id": name, "branch": branch, "flavour": flavour, "revisions": [revision]}


def verdict(kernel, driver):
    branch, release = int(driver["branch"]), kernel["release"]
    if kernel["state"] != "available":
        return {"kind": "unavailable", "part": "headers",
                "why": f"linux-headers-{release}: 404 Not Found in bullseye-security"}
    if release.startswith("7."):
        if branch in (550, 555):
            return {"kind": "works-patched", "patches": ["linux-7-interfaces", "strncpy-gone"]}
        if branch in (390, 470):
            return {"kind": "works"}
        return {"kind": "does-not-compile", "class": "interface-gone", "name": "strncpy",
                "line": "nvidia/os-interface.c:412:5: error: implicit declaration of function 'strncpy'; did "
                        "you mean 'strscpy'? [-Wimplicit-function-declaration]",
                "remedy": "Take a newer packaging revision (--archive-suite sid), or a driver of branch 550."}
    if kernel["flavour"] == "rt" and branch < 450:
        return {"kind": "refused", "code": "kernel-realtime", "reason": "this driver needs a symbol that a "
                "realtime kernel exports to GPL modules alone", "remedy": "Boot the generic kernel."}
    if kernel["id"] == "forky-rt" and branch == 525:
        return {"kind": "not-run", "why": HOSTILE}
    if kernel["id"] == "trixie-security-rt" and branch == 555:
        return {"kind": "guest-ended", "class": "panicked",
                "why": ["Kernel panic - not syncing: Fatal exception; the guest ended at `start` without a verdict",
                        f"kernel: BUG: scheduling while atomic {HOSTILE}"]}
    if kernel["id"] == "trixie-security-rt" and branch == 460:
        return {"kind": "faulty", "why": ["the agent's exit code is 17, not 0", HOSTILE]}
    if branch == 418 and release.startswith("6.12"):
        return {"kind": "compiled", "patches": [] if kernel["flavour"] == "generic" else ["strncpy-gone"]}
    return {"kind": "works"}


def result(kernel, driver, name):
    found = verdict(kernel, driver)
    failed = found["kind"] in ("does-not-compile", "faulty", "guest-ended")
    log = {
        "file": f"runs/{name}/build.log", "sha256": sha(name), "bytes": 1843200, "failing-line": 11 if failed else None,
        "excerpt": [f"  CC [M]  /build/nvidia/nv-{n}.o" for n in range(11)]
        + [found.get("line", "BUG: scheduling while atomic: nvidia-modprobe/412/0x00000002")]
        + ["      |     ^~~~~~~", HOSTILE, "make[2]: *** [scripts/Makefile.build:289] Error 1"],
    }
    old = {"revision": "nvidia-kernel-source 550.163.01-5.1 in sid",
           "line": "the kernel has no drm_atomic_commit: a.c:1:1: error: 'drm_atomic_commit' undeclared"}
    return {
        "name": name, "key": sha(name + "key"), "verdict": found,
        "resolved": None if found["kind"] == "unavailable" else {
            "kernel-release": kernel["release"], "kernel-version": kernel["version"],
            "headers": f"linux-headers-{kernel['release']} {kernel['version']}", "compiler": "gcc-14 14.2.0-19",
            "driver-version": f"{driver['branch']}.163.01",
            "revision": f"nvidia-kernel-source {driver['branch']}.163.01-4~bpo13+1 in trixie-backports",
            "refused-revisions": [old] if driver["branch"] == "550" else [],
            "patches": found.get("patches", []),
            "notes": ["NVIDIA does not support PREEMPT_RT; Debian's dkms.conf refuses it."]
            if kernel["flavour"] == "rt" else [],
        },
        "phases": [{"name": "booted", "after-ms": 9100}, {"name": "ready", "after-ms": 41240}],
        "measured": {"agent VmRSS": "11.2 MiB"},
        "times": {"prepare-ms": 4100, "compile-ms": 38700, "guest-ms": 66200, "other-ms": 900},
        "log": log if failed else None,
        "reused-from": "20261122T010000Z-00c0ffee" if kernel["suite"].startswith("b") and found["kind"] == "works" else None,
    }


def results(shard):
    axes = list(kernels()), list(drivers())
    pairs = [(k, d, f"{k['id']}-{d['id']}") for k in axes[0] for d in axes[1]]
    planned = [{"name": name, "set": "product", "rule": "works", "scenario": "works", "kernel": k["id"],
                "driver": d["id"], "gpus": ["t4"]} for k, d, name in pairs]
    cells = [result(*pair) for at, pair in enumerate(pairs) if shard is None or at % 2 == shard - 1]
    index = shard or 0
    return {
        "format": 2,
        "run": {
            "id": f"20261123T010{index}00Z-0badcafe", "nonce": sha(f"nonce {index}")[:32],
            "began": "2026-11-23T01:00:00Z", "ended": "2026-11-23T07:12:30Z", "complete": True,
            "machine": {"cores": 2, "qemu": "7.2.19", "backend": "x-remote"},
            "agent": {"version": "0.1.0", "image": sha("image")}, "lock": sha("lock"),
            "shard": {"index": shard, "count": 2} if shard else None,
        },
        "kernels": axes[0], "drivers": axes[1],
        "excluded": [{"match": {"flavour": "open", "branch": "..515"}, "count": 162,
                      "reason": "NVIDIA has no open modules before 515"}],
        "planned": planned, "cells": cells,
    }


def before():
    run = results(None)
    run["run"] |= {"id": "20261122T010000Z-00c0ffee", "nonce": "f" * 32, "ended": "2026-11-22T07:30:00Z",
                   "began": "2026-11-22T01:00:00Z"}
    for cell in run["cells"]:
        kind = cell["verdict"]["kind"]
        if kind == "works-patched" and "open" in cell["name"]:
            cell["verdict"] = {"kind": "does-not-compile", "class": "interface-gone", "name": "strncpy",
                               "line": "error", "remedy": ""}
        if kind in ("faulty", "guest-ended", "not-run"):
            cell["verdict"] = {"kind": "works"}
    return run


def history(out):
    kinds = ["works", "does-not-compile", "unavailable"]
    for day in range(1, 22):
        good = 150 + 4 * day
        statuses = ["works"] * good + ["does-not-compile"] * (280 - good) + ["unavailable"] * 36
        statuses += ["missing" if day % 7 == 0 else "works"] * 8
        cells = [{"name": f"cell-{n}", "key": None, "status": status, "took-ms": 60000}
                 for n, status in enumerate(statuses)]
        assert set(statuses) >= set(kinds)
        run = {"format": 1, "id": f"2026110{day}", "ended": f"2026-11-{day:02}T07:00:00Z", "cells": cells}
        (out / f"202611{day:02}T070000Z-a.json").write_text(json.dumps(run))


def main():
    out = pathlib.Path(sys.argv[1])
    for shard in (1, 2):
        (out / f"shard-{shard}.json").write_text(json.dumps(results(shard)))
    (out / "before.json").write_text(json.dumps(before()))
    (out / "history").mkdir()
    history(out / "history")


main()
