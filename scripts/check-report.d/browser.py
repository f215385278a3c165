"""Opens the report's page in Chromium, by chromedriver's WebDriver protocol, and checks it."""

import base64
import json
import pathlib
import subprocess
import sys
import urllib.error
import urllib.request

WIDE, NARROW = (1440, 1000), (390, 844)
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Left": "\ue012", "Up": "\ue013",
        "Right": "\ue014", "Down": "\ue015", "Home": "\ue011", "End": "\ue010"}
CELLS = 27 * 12
# Three kernels have no sources, and are folded below the table.
TABLE = 24 * 12


class Browser:
    """A session of chromedriver."""

    def __init__(self, port):
        self.base = f"http://127.0.0.1:{port}"
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self.ask("/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{made['sessionId']}"

    def ask(self, path, body):
        request = urllib.request.Request(self.base + path, json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode()[:600]}") from error

    def devtools(self, command, **parameters):
        return self.ask("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script):
        return self.ask("/execute/sync", {"script": script, "args": []})

    def show(self, page, size, scheme="light"):
        self.devtools("Emulation.setDeviceMetricsOverride", width=size[0], height=size[1],
                      deviceScaleFactor=1, mobile=size == NARROW)
        scheme = {"name": "prefers-color-scheme", "value": scheme}
        reduced = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme, reduced])
        self.ask("/url", {"url": page.resolve().as_uri()})

    def press(self, *keys):
        actions = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self.ask("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def log(self):
        return [entry["message"] for entry in self.ask("/se/log", {"type": "browser"})]

    def picture(self, path, whole=False):
        shot = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


def equal(what, found, wanted):
    assert found == wanted, f"{what}: {found!r} instead of {wanted!r}"
    print(f"ok {what}: {found!r}")


FOCUS = """const at = document.activeElement;
return (at.closest('td') ? at.getAttribute('href') : at.id || at.textContent.trim());"""
COUNT = "return document.getElementById('count').textContent"
SHOWN = "return [...document.querySelectorAll('details.cell')].filter(e => e.checkVisibility()).length"


# Columns and state of the tables: supported branches, and those below the fold.
TABLES = """return [...document.querySelectorAll('.matrix table')].map(e =>
    [e.querySelectorAll('thead tr')[1].cells.length, e.checkVisibility()])"""


def contents(browser):
    equal("tables: columns, and whether they are seen", browser.run(TABLES), [[4, True], [8, False]])
    heads = "return [...document.querySelectorAll('.matrix table')].map(e => e.querySelector('.states').innerText)"
    equal("states", [text.count("supported until") for text in browser.run(heads)], [4, 0])
    equal("title", browser.run("return document.title").startswith("Kernel matrix: "), True)
    equal("cells in the table", browser.run("return document.querySelectorAll('.matrix td a').length"), TABLE)
    equal("without sources", browser.run("return document.querySelectorAll('.absent dt').length"), 3)
    equal("details", browser.run(SHOWN), CELLS)
    equal("elements of hostile texts", browser.run(
        "return document.querySelectorAll('img, iframe, object, [onerror]').length"), 0)
    equal("scripts", browser.run("return document.scripts.length"), 1)
    equal("count", browser.run(COUNT), f"{CELLS} of {CELLS} cells")
    equal("first section", browser.run("return document.querySelector('main section').className"), "changes")
    unnamed = """return [...document.querySelectorAll('th')].filter(e => !e.scope).length"""
    equal("headers without a scope", browser.run(unnamed), 0)
    legend = """return [...document.querySelectorAll('.legend b')].reduce((sum, e) => sum + Number(e.textContent), 0)"""
    equal("sum of the counts", browser.run(legend), CELLS)


# Statuses and the table whose text is wider than their box.
BESIDE = """return [...document.querySelectorAll('.s, .matrix, .matrix td')]
    .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1).map(e => e.outerHTML.slice(0, 90)).slice(0, 5)"""


def layout(browser, name):
    wide = "return document.documentElement.scrollWidth <= innerWidth"
    equal(f"{name}: nothing beside the screen", browser.run(wide), True)
    equal(f"{name}: texts beside their box", browser.run(BESIDE), [])


# Ratio of the luminance of a status's text and its back (WCAG 2.2, 1.4.3).
CONTRAST = """
const light = (text) => {
  const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
const low = [];
for (const element of document.querySelectorAll('.legend .s, .quiet, .meaning, .why, .release, .state, h1, .top a')) {
  let under = element;
  while (under && getComputedStyle(under).backgroundColor === 'rgba(0, 0, 0, 0)') under = under.parentElement;
  const [ink, paper] = [getComputedStyle(element).color, getComputedStyle(under ?? document.body).backgroundColor];
  const found = ratio(light(ink), light(paper));
  if (found < 4.5) low.push(`${element.className} ${found.toFixed(2)}`);
}
return [...new Set(low)];
"""


# Returns after the events of a key were handled: a dialog's `close` comes in a task of its own.
EVENTS = "return new Promise(done => requestAnimationFrame(() => setTimeout(() => done(true))))"


def keyboard(browser):
    browser.run("document.querySelector('header.top').scrollIntoView(); document.activeElement.blur()")
    browser.press("Tab")
    equal("first stop of Tab", browser.run(FOCUS), "Skip to the table")
    browser.press("/")
    equal("focus after /", browser.run(FOCUS), "search")
    browser.press(*"555 rt trixie-sec")
    equal("cells after a filter", browser.run(COUNT), "2 of 324 cells")
    equal("details after a filter", browser.run(SHOWN), 2)
    rows = "return [...document.querySelectorAll('.matrix tbody tr:not(.group)')].filter(e => e.checkVisibility()).length"
    equal("rows after a filter", browser.run(rows), 1)
    equal("a filter opens the ended branches", browser.run(TABLES)[1][1], True)
    for _ in range(40):
        browser.press("Tab")
        if browser.run("return Boolean(document.activeElement.closest('.matrix td'))"):
            break
    first = browser.run(FOCUS)
    equal("one stop of Tab in the table", browser.run(
        "return document.querySelectorAll('.matrix td a[tabindex=\"0\"]').length"), 1)
    browser.press("Right")
    equal("right of the first", int(browser.run(FOCUS)[2:]), int(first[2:]) + 1)
    browser.press("Right")
    equal("right of the last", int(browser.run(FOCUS)[2:]), int(first[2:]) + 1)
    browser.press("Enter")
    equal("panel", browser.run("return document.querySelector('dialog').open"), True)
    equal("focus in the panel", browser.run(FOCUS), "×")
    browser.press("Left")
    browser.press("Escape")
    browser.run(EVENTS)
    equal("focus after the panel", browser.run(FOCUS), first)
    browser.run("const s = document.getElementById('search'); s.value = ''; s.dispatchEvent(new Event('input'))")
    browser.press("Home", "Down", "Down", "End", "Up")
    at = int(browser.run(FOCUS)[2:])
    equal("column after End and Up: the oldest ended branch", at % 12, 0)
    browser.run("document.querySelector('input[value=works]').click()")
    good = "return [...document.querySelectorAll('.legend li')].find(e => e.querySelector('.works')).querySelector('b').textContent"
    left = CELLS - int(browser.run(good))
    equal("cells without those that work", browser.run(COUNT), f"{left} of {CELLS} cells")


def cards(browser, page, out):
    browser.show(page, NARROW)
    browser.run("document.querySelector('.matrix td a').focus()")
    browser.press("Down", "Right")
    equal("cards: the second after the first", browser.run(FOCUS), "#c8")
    browser.press("Enter", "Escape")
    equal("cards: focus after the panel", browser.run(FOCUS), "#c8")
    browser.run("document.querySelector('.filter').scrollIntoView()")
    browser.picture(out / "narrow-light-filter.png")


def without_script(browser, page, out):
    browser.devtools("Emulation.setScriptExecutionDisabled", value=True)
    browser.show(page, WIDE)
    root = browser.devtools("DOM.getDocument", depth=0)["root"]["nodeId"]

    def every(selector):
        return browser.devtools("DOM.querySelectorAll", nodeId=root, selector=selector)["nodeIds"]

    equal("without script: cells", len(every(".matrix td a")), TABLE)
    equal("without script: details", len(every("details.cell")), CELLS)
    equal("without script: search is hidden", len(every(".search[hidden]")), 1)
    browser.ask("/url", {"url": page.resolve().as_uri() + "#c100"})
    root = browser.devtools("DOM.getDocument", depth=0)["root"]["nodeId"]
    equal("without script: a link opens the details", len(every("details.cell[open][data-at='100']")), 1)
    browser.picture(out / "without-script.png")
    browser.devtools("Emulation.setScriptExecutionDisabled", value=False)


def pictures(browser, page, out):
    for size_name, size in (("wide", WIDE), ("narrow", NARROW)):
        for scheme in ("light", "dark"):
            name = f"{size_name}-{scheme}"
            browser.show(page, size, scheme)
            layout(browser, name)
            equal(f"{name}: texts of low contrast", browser.run(CONTRAST), [])
            browser.picture(out / f"{name}.png")
            browser.run("document.querySelector('.matrix').scrollIntoView(); scrollBy(0, 200)")
            browser.picture(out / f"{name}-table.png")
            browser.run("document.querySelector('.matrix td a.does-not-compile').click()")
            browser.picture(out / f"{name}-panel.png")
            browser.run("document.querySelector('dialog').close()")
            browser.run("""document.querySelector('details.cell[data-status=faulty]').open = true;
                document.querySelector('details.cell[data-status=faulty]').scrollIntoView(); scrollBy(0, -200)""")
            browser.picture(out / f"{name}-details.png")


def check(browser, out):
    page = out / "page.html"
    browser.show(page, WIDE)
    contents(browser)
    keyboard(browser)
    pictures(browser, page, out)
    cards(browser, page, out)
    browser.show(page, WIDE)
    browser.run("document.querySelector('.trend').scrollIntoView()")
    browser.picture(out / "wide-light-trend.png")
    equal("console", browser.log(), [])
    browser.show(out / "missing.html", WIDE)
    equal("missing cells", browser.run("return document.querySelectorAll('.matrix td a.missing').length"), CELLS // 2)
    equal("a missing shard is named", browser.run("return document.querySelector('.problems').innerText").count("shard 2 of 2"), 1)
    browser.picture(out / "missing.png")
    browser.show(page, (820, 1100))
    layout(browser, "tablet")
    browser.picture(out / "tablet.png")
    without_script(browser, page, out)
    equal("console at the end", browser.log(), [])


def main():
    out = pathlib.Path(sys.argv[1])
    driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        port = None
        for line in driver.stdout:
            if "started successfully on port " in line:
                port = line.rsplit("on port ", 1)[1].strip(" .\n")
                break
        assert port and port != "0", "chromedriver named no port"
        browser = Browser(port)
        try:
            check(browser, out)
        finally:
            urllib.request.urlopen(urllib.request.Request(browser.base, method="DELETE"), timeout=60).close()
    finally:
        driver.terminate()
        driver.wait()
    print(f"screenshots are in {out}")


main()
