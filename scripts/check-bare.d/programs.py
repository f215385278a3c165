"""Lists the programs that this repository's files call by name, as "NAME<tab>FILE" lines.

Shell scripts are read by shfmt's parser, so that functions, builtins and words in strings are no programs; of
Rust and Python files the literal arguments of Command::new and subprocess are taken. A name that is only known at
run time ("$matrix") cannot be seen here: running the commands in a bare root (check-bare --whole) covers these.

    programs.py FILE ...
"""

import json
import re
import subprocess
import sys

# Programs that run the command after their own options.
WRAPPERS = {"command", "env", "exec", "flock", "ionice", "nice", "nohup", "setpriv", "setsid", "stdbuf", "time", "timeout", "unshare", "xargs"}
# Shell keywords and builtins of bash and of POSIX shells.
BUILTINS = set(
    ". : [ alias bg break builtin case cd command compgen continue declare dirs disown echo enable eval exec exit export "
    "false fg getopts hash help history jobs kill let local logout mapfile popd printf pushd pwd read readarray readonly "
    "return set shift shopt source suspend test time times trap true type typeset ulimit umask unalias unset until wait".split()
)


def literal(word):
    """Text of a word without expansions, or None."""
    text = ""
    for part in word.get("Parts", []):
        if part["Type"] in ("Lit", "SglQuoted"):
            text += part.get("Value", "")
        elif part["Type"] == "DblQuoted":
            inner = literal(part)
            if inner is None:
                return None
            text += inner
        else:
            return None
    return text


def calls(node):
    """Literal words of each simple command below a node, in order; None for a word with expansions."""
    if isinstance(node, list):
        for item in node:
            yield from calls(item)
    elif isinstance(node, dict):
        if node.get("Type") == "CallExpr" and node.get("Args"):
            yield [literal(word) for word in node["Args"]]
        for value in node.values():
            yield from calls(value)


def functions(node):
    """Names of the functions that are declared below a node."""
    if isinstance(node, list):
        for item in node:
            yield from functions(item)
    elif isinstance(node, dict):
        if node.get("Type") == "FuncDecl":
            yield node["Name"]["Value"]
        for value in node.values():
            yield from functions(value)


def is_argument(word):
    """True for an option, a number or span, an assignment, a path or a redirection's word."""
    return re.match(r"-|[0-9.]+[smhd]?$|\w+=", word) is not None


def programs_of(words):
    """The program of a command, and that which it runs in turn."""
    while words:
        name, words = words[0], words[1:]
        if name is None:
            return
        yield name
        if name == "command" and words[:1] in (["-v"], ["-V"]):
            return
        if name not in WRAPPERS:
            return
        while words and words[0] is not None and is_argument(words[0]):
            words = words[1:]


def shell(path):
    with open(path, "rb") as file:
        run = subprocess.run(["shfmt", "--to-json", "-ln", "bash"], stdin=file, stdout=subprocess.PIPE, check=True)
    tree = json.loads(run.stdout)
    known = BUILTINS | set(functions(tree))
    found = {name for words in calls(tree) for name in programs_of(words)}
    return {name for name in found if name not in known}, set(functions(tree))


def is_shell(path):
    with open(path, encoding="utf-8") as file:
        return not path.endswith((".rs", ".py")) and "python3" not in file.readline()


def other(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return set(re.findall(r'Command::new\("([^"]+)"\)', text)) | set(
        re.findall(r'subprocess\.\w+\(\s*\[\s*"([^"]+)"', text)
    )


def main(paths):
    scripts, found, everywhere = [], {}, set()
    for path in paths:
        if not is_shell(path):
            found[path] = other(path)
            continue
        scripts.append(path)
        found[path], declared = shell(path)
        everywhere |= declared
    for path, names in found.items():
        for name in sorted(names):
            # A file that another one sources calls that one's functions.
            if path in scripts and name in everywhere:
                continue
            # Files of this repository, and paths that exist at run time only.
            if "/" in name and not name.startswith(("/bin/", "/sbin/", "/usr/")):
                continue
            # Names in capitals are variables (env -u NAME).
            if re.fullmatch(r"[\w./+-]+", name) and not re.fullmatch(r"[A-Z_]+", name):
                print(f"{name}\t{path}")


main(sys.argv[1:])
