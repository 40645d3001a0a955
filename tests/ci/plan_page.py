"""The page of `crossmesh plan --html` in headless Chromium.

In: the release build, a Chromium. Out: exit code 0 when pages load without an error or warning in the console, ask for
nothing but themselves, show all pictures at their place, no words cut off or on each other; 1 with what is wrong.
Guarantee: a page that is wrong on purpose is refused first, so that the check is known to see. With a path as argument, a
picture of the last page is left there. Chromium is spoken to over a pair of pipes, so nothing but Python is needed.
"""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

COMMAND = os.environ.get("CROSSMESH_TEST_BIN", "target/release/crossmesh")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
CASES = pathlib.Path(__file__).parent.parent / "planner" / "cases.json"
WIDTH = 1100
LIMIT_S = 120

WRONG = (
    '<!DOCTYPE html><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
    '<img src="http://127.0.0.1:9/x.png"><svg viewBox="0 0 100 20"><text x="90" y="10">cut off here</text></svg>'
)
# Of every picture: its size, and the boxes of its words in its own coordinates.
PICTURES = """JSON.stringify([...document.querySelectorAll('svg')].map(svg => ({
  width: svg.viewBox.baseVal.width, height: svg.viewBox.baseVal.height, shown: svg.getBoundingClientRect().width,
  words: [...svg.querySelectorAll('text')].map(text => {
    const box = text.getBBox();
    return {text: text.textContent, x: box.x, y: box.y, right: box.x + box.width, bottom: box.y + box.height};
  })})))"""


class Browser:
    """A headless Chromium with one page."""

    def __init__(self, program, folder):
        to_read, self.requests = os.pipe()
        self.answers, to_write = os.pipe()
        flags = [
            "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
            "--remote-debugging-pipe", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}",
        ]  # fmt: skip
        # Chromium reads requests from descriptor 3 and answers on 4.
        script = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", program, *flags],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        os.set_blocking(self.answers, False)
        self.until = time.monotonic() + LIMIT_S
        self.buffer = b""
        self.events = []
        self.number = 0
        self.session = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.size(1000)

    def size(self, height):
        self.ask("Emulation.setDeviceMetricsOverride", width=WIDTH, height=height, deviceScaleFactor=1, mobile=False)

    def message(self):
        """The next message; raises when there is none in time."""
        while b"\0" not in self.buffer:
            if time.monotonic() > self.until or self.process.poll() is not None:
                raise SystemExit(f"Chromium did not answer within {LIMIT_S} s, or ended")
            try:
                self.buffer += os.read(self.answers, 1 << 20)
            except BlockingIOError:
                time.sleep(0.01)
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, **parameters):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.requests, json.dumps(request).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("id") == self.number:
                if "error" in message:
                    raise SystemExit(f"{method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def open(self, path):
        """Loads a page and returns what happened on the way."""
        self.events = []
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())
        # What the console has to say of the page comes before this answer.
        self.ask("Runtime.evaluate", expression="new Promise(done => setTimeout(done, 200))", awaitPromise=True)
        return self.events

    def evaluate(self, expression):
        return json.loads(self.ask("Runtime.evaluate", expression=expression)["result"]["value"])

    def screenshot(self):
        self.size(self.evaluate("JSON.stringify(document.documentElement.scrollHeight)"))
        return base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])

    def close(self):
        self.session = None
        os.write(self.requests, json.dumps({"id": 0, "method": "Browser.close"}).encode() + b"\0")
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def faults(browser, path):
    """What is wrong with a page."""
    found = []
    for event in browser.open(path):
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            found.append(f"console: {parameters['args']}")
        elif method == "Runtime.exceptionThrown":
            found.append(f"exception: {parameters['exceptionDetails']}")
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            found.append(f"console {parameters['entry']['level']}: {parameters['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            if url != path.resolve().as_uri() and not url.startswith("data:"):
                found.append(f"asks for {url}")
    pictures = browser.evaluate(PICTURES)
    for number, picture in enumerate(pictures):
        found += [f"picture {number}: {fault}" for fault in misplaced(picture)]
    return found, len(pictures)


def misplaced(picture):
    """Words that are cut off or lie on each other; a pixel is allowed."""
    words = picture["words"]
    if picture["shown"] < 300:
        yield f"is only {picture['shown']} pixels wide"
    for word in words:
        if word["x"] < -1 or word["y"] < -1 or word["right"] > picture["width"] + 1 or word["bottom"] > picture["height"] + 1:
            yield f"{word['text']!r} is cut off"
    for number, one in enumerate(words):
        for other in words[number + 1 :]:
            across = min(one["right"], other["right"]) - max(one["x"], other["x"])
            down = min(one["bottom"], other["bottom"]) - max(one["y"], other["y"])
            if across > 1 and down > 4:
                yield f"{one['text']!r} and {other['text']!r} lie on each other"


def plan(page, arguments):
    """Writes a page and returns the results."""
    done = subprocess.run(
        [COMMAND, "plan", *arguments, "--json", "-", "--html", page], stdout=subprocess.PIPE, timeout=LIMIT_S, check=True
    )
    return json.loads(done.stdout)


def main():
    browsers = [path for path in map(shutil.which, BROWSERS) if path]
    if not browsers:
        raise SystemExit(f"none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory(prefix="crossmesh-page.") as name:
        folder = pathlib.Path(name)
        browser = Browser(browsers[0], folder / "profile")
        try:
            check(browser, folder)
        finally:
            browser.close()


def check(browser, folder):
    wrong = folder / "wrong.html"
    wrong.write_text(WRONG)
    found, _ = faults(browser, wrong)
    if not (any("Content Security Policy" in fault for fault in found) and any("cut off" in fault for fault in found)):
        raise SystemExit(f"a page that is wrong on purpose was not refused: {found}")
    ring = "--model llama-3-70b --src tp=4,pp=2 --dst tp=4,dp=8 --topology hgx-h100:5 --simulate".split()
    whole = "--model deepseek-v3 --src ep=16,pp=8 --dst tp=16,dp=8 --topology gb200-nvl72:4/64".split()
    for title, arguments, expected in [
        ("cases", ["--case", str(CASES)], 15),
        ("flat", [*ring, "--route", "flat"], 3),
        ("gather", [*ring, "--route", "gather-broadcast"], 3),
        ("whole model", whole, 3),
        ("ring", ring, 3),
    ]:
        page = folder / "plan.html"
        results = plan(page, arguments)
        found, pictures = faults(browser, page)
        if pictures != expected:
            found.append(f"{pictures} pictures and not {expected}")
        if found:
            raise SystemExit(f"{title}: " + "\n".join(found[:20]))
        took = f"; planned in {results['plan_seconds']:.1f} s" if isinstance(results, dict) else ""
        print(f"{title}: {pictures} pictures, nothing in the console, nothing asked for{took}")
    if len(sys.argv) > 1:
        pathlib.Path(sys.argv[1]).write_bytes(browser.screenshot())


if __name__ == "__main__":
    main()
