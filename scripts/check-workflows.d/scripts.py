"""Writes each script of the workflows to a file of its own: scripts.py OUT WORKFLOW...; GitHub's lie in a directory `github`.

Fails where a job compiles a shard and has no git for it: the results would name no commit, and push would refuse them.
"""

import pathlib
import sys

from ruamel.yaml import YAML

out, *workflows = map(pathlib.Path, sys.argv[1:])


def read(path):
    return YAML(typ="safe").load(path.read_text())


def write(name, text):
    # A place that the CI fills in before the shell runs would be a way in for foreign text.
    if "${{" in text:
        sys.exit(f"check-workflows: an expression is part of the script {name}: {text}")
    (out / f"{name}.sh").write_text(f"#!/usr/bin/env bash\nset -euo pipefail\n{text}\n")


def check_git(job, scripts, makes_checkout):
    """scripts are those of the job in their order; GitHub's checkout, an empty one of them, needs git before it."""
    shard = next((i for i, text in enumerate(scripts) if "ci/matrix shard" in text), None)
    if shard is None:
        return
    end = next(i for i, text in enumerate(scripts) if not text) if makes_checkout else shard
    installs = ("ci/matrix libraries", "install -y -qq --no-install-recommends ca-certificates git")
    if not any(line in text for text in scripts[:end] for line in installs):
        sys.exit(f"check-workflows: the job {job} compiles a shard, and git is not installed before its checkout or shard")


for path in workflows:
    workflow = read(path)
    if path.parent.name == "github":
        for name, job in workflow["jobs"].items():
            is_other = lambda step: "uses" in step and not step["uses"].startswith("actions/checkout@")
            check_git(name, [step.get("run", "") for step in job["steps"] if not is_other(step)], True)
            for number, step in enumerate(job["steps"]):
                if "run" in step:
                    write(f"github-{path.stem}-{name}-{number}", step["run"])
    else:
        for name, job in workflow.items():
            if isinstance(job, dict) and "script" in job:
                check_git(name, job["script"], False)
                write(f"gitlab-{path.stem}-{name}", "\n".join(job["script"]))
