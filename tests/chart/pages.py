"""Values and helm commands in the pages: scripts/check-chart renders the chart with each of them.

    pages.py HELM CHART PAGE...    prints how many were rendered; fails where one is refused, or a page has none
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile

import yaml


def blocks(page, language):
    """Returns the blocks of a language in a page."""
    with open(page, encoding="utf-8") as file:
        return re.findall(rf"^```{language}\n(.*?)^```$", file.read(), re.M | re.S)


def commands(page, chart):
    """Yields the options of `helm install`, `upgrade` or `template` of the chart in a page's blocks of shell."""
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            if not line.startswith("helm "):
                continue
            words = shlex.split(line, comments=True)
            # The chart's own page does not know its place.
            if not {chart, "CHART"} & set(words):
                continue
            options = []
            for option, value in zip(words, words[1:]):
                if option in ("--set", "--set-string", "--set-json"):
                    options += [option, value]
            yield options


def values(page, known):
    """Yields the blocks of YAML in a page that are values of the chart: all their keys are known."""
    for block in blocks(page, "yaml"):
        found = list(yaml.safe_load_all(block))
        if len(found) == 1 and isinstance(found[0], dict) and found[0] and found[0].keys() <= known:
            yield block


def main(helm, chart, *pages):
    """Renders the chart with all values and options of the pages."""
    with open(f"{chart}/values.schema.json", encoding="utf-8") as file:
        known = json.load(file)["properties"].keys()
    rendered = 0
    for page in pages:
        wanted = [(options, None) for options in commands(page, chart)]
        wanted += [([], block) for block in values(page, known)]
        if not wanted:
            raise SystemExit(f"{page} has neither values nor a helm command of the chart")
        for options, block in wanted:
            with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
                file.write(block or "")
                file.flush()
                ran = subprocess.run([helm, "template", "longshore", chart, "--values", file.name, *options],
                                     capture_output=True, text=True, check=False)
            if ran.returncode != 0:
                raise SystemExit(f"{page}: {block or ' '.join(options)}: {ran.stderr.strip()}")
            rendered += 1
    print(rendered)


if __name__ == "__main__":
    main(*sys.argv[1:])
