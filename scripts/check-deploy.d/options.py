"""Compares the options of the container in deploy/ with those of README's `podman run`.

    options.py README DEADLINES UNIT QUADLET-UNIT COMPOSE-JSON

UNIT is the systemd unit, QUADLET-UNIT the one that podman's generator makes, COMPOSE-JSON the output of `docker compose
config --format json`. Fails with a line for each difference.
"""

import json
import re
import shlex
import sys

# Options with a value, by the name that they are compared by; all others of the table are switches.
VALUES = {"--name": "name", "--pid": "pid", "--network": "network", "--stop-timeout": "stop", "-e": "environment",
          "--env": "environment", "-v": "volumes", "--volume": "volumes"}
SWITCHES = {"--privileged": "privileged"}
# Options that say nothing about the container's rights: removal at its end, and what systemd and the generator need.
OTHERS = {"--rm", "-d", "--replace"}
OTHER_VALUES = {"--cidfile", "--cgroups", "--sdnotify"}


def container(words):
    """Returns the container of the words after `podman run`."""
    found = {"volumes": set(), "environment": set(), "privileged": False}
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word])]
    while words:
        word = words.pop(0)
        if word in VALUES:
            name, value = VALUES[word], words.pop(0)
            if name in ("volumes", "environment"):
                found[name].add(value)
            else:
                found[name] = value
        elif word in SWITCHES:
            found[SWITCHES[word]] = True
        elif word in OTHERS:
            continue
        elif word in OTHER_VALUES:
            words.pop(0)
        elif word.startswith("-"):
            raise SystemExit(f"check-deploy: the option {word} is not compared: name it in options.py")
        else:
            found["image"] = word
            if words:
                raise SystemExit(f"check-deploy: arguments after the image: {words}")
    return found


def joined(text):
    """Joins lines that a backslash continues."""
    return re.sub(r"\\\n\s*", " ", text)


def readme(path):
    lines = [line for line in joined(open(path, encoding="utf-8").read()).splitlines()
             if line.startswith("podman run --name longshore ")]
    if len(lines) != 1:
        raise SystemExit(f"check-deploy: {path} has {len(lines)} lines `podman run --name longshore` instead of one")
    return container(shlex.split(lines[0])[2:])


def seconds(text):
    """Returns the seconds of `40`, `40s` or `1m20s`."""
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s?)?", text or "")
    if not text or not found:
        raise SystemExit(f"check-deploy: {text!r} is no time")
    return int(found[1] or 0) * 60 + int(found[2] or 0)


def unit(path):
    """Returns the container of a unit, and its settings."""
    settings = {}
    for line in joined(open(path, encoding="utf-8").read()).splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            settings.setdefault(key, []).append(value)
    variables = {}
    for value in settings.get("Environment", []):
        (one,) = shlex.split(value)
        name, _, content = one.partition("=")
        variables[name] = content
    (start,) = settings["ExecStart"]
    # As systemd does: ${NAME} is one word, $NAME at its own is split at blanks.
    words = []
    for word in shlex.split(start):
        if re.fullmatch(r"\$[A-Z]+", word):
            words += shlex.split(variables[word[1:]])
        else:
            words.append(re.sub(r"\$\{([A-Z]+)\}", lambda name: variables[name[1]], word))
    found = container(words[words.index("run") + 1:])
    stops = [re.search(r" stop --time (\d+) longshore$", value) for value in settings.get("ExecStop", [])]
    if "stop" not in found and stops and stops[0]:
        found["stop"] = stops[0][1]
    found["systemd"] = settings.get("TimeoutStopSec", [""])[-1]
    found["restart"] = settings.get("Restart", [""])[-1]
    # By the container's own message, or by a question in it.
    found["waits"] = "--sdnotify=container" in words or any("status --ready --wait" in value for value in
                                                            settings.get("ExecStartPost", []))
    return found


def compose(path):
    (service,) = json.load(open(path, encoding="utf-8"))["services"].values()
    volumes = set()
    for volume in service["volumes"]:
        if volume["type"] != "bind" or volume.get("read_only"):
            raise SystemExit(f"check-deploy: compose: {volume}")
        propagation = volume.get("bind", {}).get("propagation")
        volumes.add(":".join(filter(None, [volume["source"], volume["target"], propagation])))
    return {
        "name": service.get("container_name"), "privileged": service.get("privileged", False),
        "pid": service.get("pid"), "network": service.get("network_mode"), "stop": service.get("stop_grace_period"),
        # docker restarts whatever the exit code was: an agent without a GPU waits instead.
        "environment": {f"{name}={value}" for name, value in service.get("environment", {}).items()}
        - {"LONGSHORE_NO_GPU=wait"},
        "volumes": volumes, "image": service["image"],
        "restart": service.get("restart"),
    }


def on_busy(path):
    """Returns the default of on-busy in seconds: that of unload-deadline, as the page says."""
    text = open(path, encoding="utf-8").read()
    if not re.search(r"\| `on-busy` [^|]*\| `wait`: as long as `unload-deadline` \|", text):
        raise SystemExit(f"check-deploy: {path} does not say that on-busy is as long as unload-deadline")
    rows = re.findall(r"\| `unload-deadline` \| `(\d+)s` \|", text)
    if len(rows) != 1:
        raise SystemExit(f"check-deploy: {path} has {len(rows)} rows of unload-deadline instead of one")
    return int(rows[0])


def shown(value):
    return ", ".join(sorted(value)) if isinstance(value, set) else value


def main(names):
    page, deadlines, systemd, quadlet, composed = names
    wanted, least = readme(page), on_busy(deadlines)
    wrong = []
    deployed = {"deploy/systemd/longshore.service": unit(systemd),
                "deploy/quadlet/longshore.container": unit(quadlet), "deploy/compose.yaml": compose(composed)}
    for name, found in [("README", wanted), *deployed.items()]:
        for key in ("name", "privileged", "pid", "network", "environment", "volumes", "image"):
            if found.get(key) != wanted.get(key) or not wanted.get(key):
                wrong.append(f"{name}: {key} is {shown(found.get(key))}, and README has {shown(wanted.get(key))}")
        stop = seconds(found.get("stop"))
        if stop <= least:
            wrong.append(f"{name}: the stop timeout is {stop} s, no longer than on-busy's {least} s")
        if found.get("restart", "always") not in ("always", "unless-stopped"):
            wrong.append(f"{name}: a clean end, as at a shutdown of the engine, is not followed by a start")
        if not found.get("waits", True):
            wrong.append(f"{name}: the unit is started before the driver is ready")
        if "systemd" in found and seconds(found["systemd"]) <= stop:
            wrong.append(f"{name}: systemd kills after {found['systemd']} s, the engine after {stop} s")
    for line in wrong:
        print(f"check-deploy: {line}", file=sys.stderr)
    if not wrong:
        print(f"{len(deployed)} files: the container of README's `podman run`, and stop timeouts over {least} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
