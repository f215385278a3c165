"""Writes each script of the workflows to a file of its own: scripts.py OUT WORKFLOW...; GitHub's lie in a directory `github`."""

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


for path in workflows:
    workflow = read(path)
    if path.parent.name == "github":
        for name, job in workflow["jobs"].items():
            for number, step in enumerate(job["steps"]):
                if "run" in step:
                    write(f"github-{path.stem}-{name}-{number}", step["run"])
    else:
        for name, job in workflow.items():
            if isinstance(job, dict) and "script" in job:
                write(f"gitlab-{path.stem}-{name}", "\n".join(job["script"]))
