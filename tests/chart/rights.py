"""Requests of tests/chart/rights.list to a real API server, and a table of the answers: rights-on-cluster runs it.

    rights.py ask PLACES TOKEN RELEASE ANSWERS     makes the requests with the token in the file TOKEN, and writes the
                                                   answers to the file ANSWERS; RELEASE is its name in the list
    rights.py table PLACES RELEASE=ANSWERS ...     prints the requests, and the answers of all releases, in Markdown. Exits
                                                   with 1 if one is not the wanted one, or fewer than 30 were made

PLACES is a JSON file with the values of the list's places. The administrator of KUBECONFIG makes each request before, as a
dry run: a request that is refused to both says nothing about rights. The token's are dry runs, too, until all answers
are the wanted ones, because a policy is in force some time after it was made; then they are made in earnest.
"""

import base64
import json
import pathlib
import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

LIST = pathlib.Path("tests/chart/rights.list")
# Fewest requests of a table, and seconds until the rights and policies of a release are in force.
FEWEST = 30
IN_FORCE = 30
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class Server:
    """API server of a kubeconfig: with its administrator's certificate, or with a token alone."""

    def __init__(self, token=None):
        config = json.loads(subprocess.run(
            ["kubectl", "config", "view", "--raw", "--minify", "--output", "json"], check=True, stdout=subprocess.PIPE).stdout)
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.address, self.token = cluster["server"], token
        self.tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        if token is None:
            with tempfile.NamedTemporaryFile() as file:
                for part in ("client-certificate-data", "client-key-data"):
                    file.write(base64.b64decode(user[part]))
                file.flush()
                self.tls.load_cert_chain(file.name)

    def call(self, method, path, body=None, dry=False):
        """Returns the status code of the answer, and its object."""
        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Content-Type": kind, "Accept": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        query = "?dryRun=All" if dry and method != "GET" else ""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path + query, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self.tls, timeout=60) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            text = refused.read().decode("utf-8", "replace")
            return refused.code, json.loads(text) if text.startswith("{") else {"message": text}


def rows(places):
    """Returns the requests of the list, with the places filled in."""
    found = []
    for number, line in enumerate(LIST.read_text("utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) != 5 or cells[1] not in METHODS:
            raise SystemExit(f"{LIST}:{number}: not of the form request | method | path | body | answer")
        words, method, call, body, wanted = cells
        path = call
        for name, value in places.items():
            path, body = path.replace(f"{{{name}}}", value), body.replace(f"{{{name}}}", value)
        default, *others = re.split(", *", wanted)
        found.append({"words": words, "method": method, "call": call, "path": path, "wanted": wanted, "default": default,
                      "others": dict(other.split("=") for other in others), "body": json.loads(body) if body else None})
    return found


def merged(old, new):
    """Returns an object with the fields of another."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return old | {key: merged(old.get(key), value) for key, value in new.items()}


def answer(server, administrator, row, dry):
    """Makes a request; returns the status code, and the message of a refusal."""
    body = row["body"]
    # Again, where a controller has written the object meanwhile.
    for _ in range(10):
        if row["method"] == "PUT":
            body = merged(administrator.call("GET", row["path"])[1], row["body"])
        code, said = server.call(row["method"], row["path"], body, dry)
        if code != 409:
            break
    return code, "" if code < 300 else said.get("message", "")


def refused_by(code, message):
    """Returns RBAC or the name of the admission policy that denied a request; None for any other answer and error."""
    if code == 403 and re.search(r' is forbidden: User "[^"]+" cannot ', message):
        return "RBAC"
    policy = re.search(r"ValidatingAdmissionPolicy '([^']+)' with binding '[^']+' denied request", message)
    return policy[1] if code in (403, 422) and policy else None


def is_wanted(row, release, code, message):
    """True if the answer is the one that the list wants from this release."""
    wanted = row["others"].get(release, row["default"])
    return refused_by(code, message) is not None if wanted == "denied" else str(code) == wanted


def ask(places, token, release, answers):
    """Makes all requests, and writes the answers."""
    administrator, agent = Server(), Server(pathlib.Path(token).read_text("utf-8").strip())
    listed = rows(json.loads(pathlib.Path(places).read_text("utf-8")))
    for row in listed:
        code, message = answer(administrator, administrator, row, dry=True)
        if code >= 300:
            raise SystemExit(f"{row['words']}: refused to the administrator, too: {code} {message}")
    end = time.monotonic() + IN_FORCE
    while True:
        found = [answer(agent, administrator, row, dry=True) for row in listed]
        wrong = [row for row, one in zip(listed, found) if not is_wanted(row, release, *one)]
        if not wrong:
            found = [answer(agent, administrator, row, dry=False) for row in listed]
            break
        if time.monotonic() > end:
            break
        time.sleep(1)
    pathlib.Path(answers).write_text(json.dumps(found), "utf-8")


def cell(row, release, code, message):
    """Returns the cell of an answer: the code, who denied it, and that it is a wrong one."""
    text = f"{code} {refused_by(code, message) or ''}".strip()
    return text if is_wanted(row, release, code, message) else f"**{text}, wrong**"


def table(places, *releases):
    """Prints the table; exits with 1 for a wrong answer."""
    listed = rows(json.loads(pathlib.Path(places).read_text("utf-8")))
    answers = {name: json.loads(pathlib.Path(path).read_text("utf-8"))
               for name, path in (release.split("=", 1) for release in releases)}
    print(f"| Request | Call | Wanted | {' | '.join(answers)} |")
    print("|---|---|---|" + "---|" * len(answers))
    wrong = []
    for number, row in enumerate(listed):
        cells = [cell(row, name, *found[number]) for name, found in answers.items()]
        print(f"| {row['words']} | `{row['method']} {row['call']}` | {row['wanted']} | {' | '.join(cells)} |")
        others = {name: found[number] for name, found in answers.items() if not is_wanted(row, name, *found[number])}
        if others:
            said = {" ".join(map(str, one)).strip() for one in others.values()}
            wrong.append(f"{row['words']}: wanted {row['wanted']}, with {', '.join(others)}: {'; '.join(sorted(said))}")
    if len(listed) < FEWEST:
        wrong.append(f"{LIST} has {len(listed)} requests, and {FEWEST} are the fewest")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    {"ask": ask, "table": table}[sys.argv[1]](*sys.argv[2:])
