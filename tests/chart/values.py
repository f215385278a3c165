"""Values of the chart: values.yaml has the defaults and a comment for each key, values.schema.json the types, and both
together give the descriptions in the schema and the table in README.md. scripts/check-chart runs it.

    values.py check CHART     fails where a key has no description, or the files differ, Chart.yaml among them
    values.py write CHART     writes the comments into the schema, and the table into README.md
"""

import base64
import json
import re
import sys

import yaml

# Keys of the schema without a default: those of Kubernetes, and former names, which a template refuses.
WITHOUT_DEFAULT = {"limits", "ephemeral-storage", "initialDelaySeconds", "successThreshold", "maxSurge",
                   "image.pullSecrets", "updateStrategy.maxUnavailable", "kubectl", "publish.signKeySecret",
                   "moduleSigning"}
BEGIN, END = "<!-- values: begin -->", "<!-- values: end -->"
WIDTH = 118


def comments(text):
    """Returns the comment above each key of values.yaml, by its path: `driver.version`. A blank line ends a comment."""
    found, stack, pending = {}, [], []
    for line in text.splitlines():
        key = re.match(r'( *)"?([A-Za-z][\w./-]*)"?:', line)
        if line.strip().startswith("#"):
            pending.append(line.strip().lstrip("#").strip())
            continue
        if key:
            stack = [one for one in stack if one[0] < len(key[1])] + [(len(key[1]), key[2])]
            if pending:
                found[".".join(name for _, name in stack)] = " ".join(pending)
        pending = []
    return found


def target(node, schema):
    """Returns the node that a reference names, or the node itself."""
    place = node.get("$ref")
    if place is None:
        return node
    found = schema
    for part in place.removeprefix("#/").split("/"):
        found = found[part]
    return found


def node_of(path, schema):
    """Returns the schema's node for a key of values.yaml, and if a reference lies above it; None where it has none."""
    node, is_shared = schema, False
    for part in path.split("."):
        is_shared = is_shared or "$ref" in node
        node = target(node, schema).get("properties", {}).get(part)
        if node is None:
            return None, is_shared
    return node, is_shared


def describe(schema, of_keys):
    """Writes the comments into the schema, as descriptions."""
    for path, text in of_keys.items():
        node, is_shared = node_of(path, schema)
        if node is not None and not is_shared:
            node.pop("description", None)
            node["description"] = text


def uncommented(values, of_keys, schema, path=""):
    """Yields each key of values.yaml without a comment whose description no other key shares."""
    for name, value in values.items():
        here = f"{path}.{name}".removeprefix(".")
        node, is_shared = node_of(here, schema)
        if node is not None and not is_shared and here not in of_keys:
            yield f"{here} has no comment in values.yaml"
        if node is not None and isinstance(value, dict):
            yield from uncommented(value, of_keys, schema, here)


def is_described(node, schema):
    """True for a key that is refused, or has a description, of its own or of the node that it refers to."""
    return node is False or "description" in node or "description" in target(node, schema)


def undescribed(node, schema, path=""):
    """Yields each key in a node of the schema that has no description, and each object that lets other keys in."""
    if not isinstance(node, dict):
        return
    for name, one in node.get("properties", {}).items():
        here = f"{path}.{name}".removeprefix(".")
        if not is_described(one, schema):
            yield f"{here} has no description in the schema"
        yield from undescribed(one, schema, here)
    if "properties" in node and node.get("additionalProperties", True) is True and path.split(".")[0] != "global":
        yield f"{path or 'the root'} lets other keys in"
    for name, one in node.get("definitions", {}).items():
        yield from undescribed(one, schema, name)
    for place in ("items", "oneOf"):
        inner = node.get(place, [])
        for one in inner if isinstance(inner, list) else [inner]:
            yield from undescribed(one, schema, f"{path}[]" if place == "items" else path)


def different(values, node, schema, path=""):
    """Yields each key that values.yaml or its schema has alone."""
    properties = target(node, schema).get("properties")
    is_open = target(node, schema).get("additionalProperties") is not False and path not in ("", "global")
    if properties is None or is_open or not isinstance(values, dict) or not values:
        return
    for name in sorted(values.keys() ^ properties.keys()):
        here = f"{path}.{name}".removeprefix(".")
        if name in values:
            yield f"{here} is in values.yaml alone"
        elif not {name, here} & WITHOUT_DEFAULT:
            yield f"{here} is in the schema alone"
    for name in values.keys() & properties.keys():
        yield from different(values[name], properties[name], schema, f"{path}.{name}".removeprefix("."))


def type_of(node, schema):
    """Returns the type of a key in words."""
    node = target(node, schema)
    if "enum" in node:
        return " or ".join(f"`{json.dumps(one)}`" for one in node["enum"])
    if "const" in node:
        return f"`{json.dumps(node['const'])}`"
    if "oneOf" in node:
        return " or ".join(dict.fromkeys(type_of(one, schema) for one in node["oneOf"] if "Former" not in
                                         one.get("description", "")))
    if node.get("type") == "array":
        items = node.get("items", {})
        inner = "object or string" if isinstance(items.get("type"), list) else type_of(items, schema)
        return f"list of {inner}"
    if node.get("type") == "object" and "properties" not in node and isinstance(node.get("additionalProperties"), dict):
        return "map of strings"
    return node.get("type", "any")


def rows(values, node, schema, path=""):
    """Yields the rows of the table: key, type, default, description."""
    for name, one in node.get("properties", {}).items():
        if one is False or "Former name" in one.get("description", ""):
            continue
        here = f"{path}.{name}".removeprefix(".")
        found = target(one, schema)
        inner = found.get("properties") and "additionalProperties" in found and found["additionalProperties"] is False
        is_pools = here.startswith("pools[].") and one.get("$ref", "").startswith("#/properties/")
        text = f"As `{name}`." if is_pools else one.get("description") or found["description"]
        has_default = isinstance(values, dict) and name in values
        default = "" if not has_default or inner and values[name] else f"`{json.dumps(values[name])}`"
        yield here, type_of(one, schema), default, text
        if is_pools:
            continue
        value = values.get(name) if isinstance(values, dict) else None
        if inner or here == "global":
            yield from rows(value, found, schema, here)
        for each in [found.get("items", {}), *(part.get("items", {}) for part in found.get("oneOf", []))]:
            if "properties" in each:
                yield from rows(None, each, schema, f"{here}[]")


def table(values, schema):
    """Returns the table of README.md."""
    cell = lambda text: text.replace("|", "\\|")
    lines = ["| Key | Type | Default | Description |", "|---|---|---|---|"]
    lines += [f"| `{key}` | {cell(kind)} | {cell(default)} | {cell(text)} |"
              for key, kind, default, text in rows(values, schema, schema)]
    return "\n".join(lines)


def compact(value, indent=0, before=0):
    """Returns JSON in which a map or list is one line where it fits behind the `before` characters of its key."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or not value or len(line) + indent + before <= WIDTH:
        return line
    inner, outer = " " * (indent + 2), " " * indent
    if isinstance(value, list):
        parts, (first, last) = [inner + compact(one, indent + 2) for one in value], "[]"
    else:
        keys = [json.dumps(name) + ": " for name in value]
        parts = [inner + key + compact(one, indent + 2, len(key)) for key, one in zip(keys, value.values())]
        first, last = "{}"
    return f"{first}\n" + ",\n".join(parts) + f"\n{outer}{last}"


def metadata(chart, values):
    """Yields what is wrong in Chart.yaml: its icon is the file icon.svg, and its image that of the default values."""
    with open(f"{chart}/Chart.yaml", encoding="utf-8") as file:
        found = yaml.safe_load(file)
    with open(f"{chart}/icon.svg", "rb") as file:
        icon = "data:image/svg+xml;base64," + base64.b64encode(file.read()).decode()
    if found["icon"] != icon:
        yield f"the icon is not that of icon.svg, {icon}"
    image = f"{values['image']['registry']}/{values['image']['repository']}:{found['appVersion']}"
    hub = {key.removeprefix("artifacthub.io/"): yaml.safe_load(text) for key, text in found["annotations"].items()}
    if hub["images"] != [{"name": "longshore", "image": image}]:
        yield f"artifacthub.io/images: {hub['images']}, not {image}"
    kinds = {"added", "changed", "deprecated", "removed", "fixed", "security"}
    yield from (f"artifacthub.io/changes: {one}" for one in hub["changes"]
                if one.keys() != {"kind", "description"} or one["kind"] not in kinds)
    for key in ("home", "sources", "maintainers", "keywords"):
        if not found.get(key):
            yield f"there is no {key}"


def main(command, chart):
    """Checks or writes the schema and README.md of the chart."""
    files = {name: f"{chart}/{name}" for name in ("values.yaml", "values.schema.json", "README.md")}
    texts = {}
    for name, path in files.items():
        with open(path, encoding="utf-8") as file:
            texts[name] = file.read()
    of_keys, values = comments(texts["values.yaml"]), yaml.safe_load(texts["values.yaml"])
    schema = json.loads(texts["values.schema.json"])
    describe(schema, of_keys)
    wrong = [*different(values, schema, schema), *uncommented(values, of_keys, schema), *undescribed(schema, schema),
             *metadata(chart, values)]
    for path, text in of_keys.items():
        node, is_shared = node_of(path, schema)
        if is_shared and node["description"] != text:
            wrong.append(f"{path}: the comment is not the schema's description, {node['description']}")
    if wrong:
        raise SystemExit(f"{chart}: " + "; ".join(wrong))
    made = {"values.schema.json": compact(schema) + "\n"}
    head, rest = texts["README.md"].split(BEGIN)
    made["README.md"] = f"{head}{BEGIN}\n{table(values, schema)}\n{END}{rest.split(END)[1]}"
    for name, text in made.items():
        if command == "write":
            with open(files[name], "w", encoding="utf-8") as file:
                file.write(text)
        elif text != texts[name]:
            raise SystemExit(f"{files[name]} is not that of values.yaml: scripts/check-chart --write")


if __name__ == "__main__":
    main(*sys.argv[1:])
