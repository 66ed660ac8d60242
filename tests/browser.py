"""A headless Chromium, driven by WebDriver's own protocol, and answers that a test makes up."""

from __future__ import annotations

import base64
import json
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from edgespec.server.application import page
from edgespec.server.lifetime import ClientLimits, HttpServer

PATIENCE_S = 60
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    "--disable-sync",
]
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
needed = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromedriver") is None,
        reason="there is no Chromium with its driver: apt install chromium-driver",
    ),
]
"""Marks of tests in a browser."""


class Browser:
    """Headless Chromium; paths are WebDriver's."""

    def __init__(self) -> None:
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True
        )
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            if found := re.search(r"successfully on port (\d+)", line):
                break
        self._http = httpx.Client(base_url=f"http://127.0.0.1:{found[1]}", timeout=PATIENCE_S)
        self._profile = tempfile.TemporaryDirectory()
        options = {"args": [*FLAGS, f"--user-data-dir={self._profile.name}"]}
        wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
        self._session = self._post("/session", wanted)["sessionId"]

    def _post(self, path: str, content: dict):
        value = self._http.post(path, json=content).json()["value"]
        assert not (isinstance(value, dict) and "error" in value), value
        return value

    def open(self, address: str) -> None:
        self._post(f"/session/{self._session}/url", {"url": address})

    def run(self, script: str):
        return self._post(f"/session/{self._session}/execute/sync", {"script": script, "args": []})

    def write(self, selector: str, text: str) -> None:
        found = self._post(
            f"/session/{self._session}/element", {"using": "css selector", "value": selector}
        )
        self._post(f"/session/{self._session}/element/{found[ELEMENT]}/value", {"text": text})

    def until(self, script: str, patience_s: float = PATIENCE_S):
        deadline = time.monotonic() + patience_s
        while not (value := self.run(f"return {script}")):
            assert time.monotonic() < deadline, f"waited in vain for {script}"
        return value

    def resize(self, width: int, height: int) -> None:
        """Set the size of what the page sees, also below the least of a window."""
        sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._devtools("Emulation.setDeviceMetricsOverride", sizes)

    def screenshot(self, **options: object) -> bytes:
        """The window as PNG; `options` are those of Chromium's Page.captureScreenshot."""
        return base64.b64decode(self._devtools("Page.captureScreenshot", options)["data"])

    def _devtools(self, command: str, parameters: dict):
        content = {"cmd": command, "params": parameters}
        return self._post(f"/session/{self._session}/goog/cdp/execute", content)

    @contextmanager
    def tab(self, address: str) -> Iterator[str]:
        """Another tab at an address, in which the block runs; `switch` goes to and fro."""
        first = self._http.get(f"/session/{self._session}/window").json()["value"]
        second = self._post(f"/session/{self._session}/window/new", {"type": "tab"})["handle"]
        self.switch(second)
        self.open(address)
        yield first
        self.switch(second)
        self._http.delete(f"/session/{self._session}/window")
        self.switch(first)

    def switch(self, tab: str) -> None:
        self._post(f"/session/{self._session}/window", {"handle": tab})

    def close(self) -> None:
        self._http.delete(f"/session/{self._session}")
        self._http.close()
        self._driver.terminate()
        assert self._driver.stdout is not None
        self._driver.stdout.close()
        self._driver.wait()
        self._profile.cleanup()


ANSWER = """
const answer = %s;
window.asked = [];
window.fetch = async (path, options) => {
  window.asked.push(JSON.parse(options.body));
  if (answer === null) throw new Error("the server is gone");
  const body = new ReadableStream({start(controller) {
    window.sent = text => controller.enqueue(new TextEncoder().encode(text));
    window.tell = chunk => window.sent("data: " + JSON.stringify(chunk) + "\\n\\n");
    window.more = content => window.tell({choices: [{delta: {content}}]});
    window.more(answer);
    window.cut = () => controller.close();
    window.end = () => {
      window.tell({choices: [{delta: {}, finish_reason: "stop"}]});
      window.cut();
    };
    options.signal.addEventListener("abort", () =>
      controller.error(new DOMException("", "AbortError")));
  }});
  return new Response(body, {status: 200});
};
"""
"""The server's answers, as a test wants them."""


def answering(browser: Browser, text: str | None) -> None:
    """Let the page's next question be answered with `text`, and then by `more` and `end`; None is
    a server that is gone."""
    browser.run(ANSWER % json.dumps(text))


def ask(browser: Browser, text: str) -> None:
    browser.write("#text", text + "\ue007")  # Enter


@contextmanager
def page_alone(chat: bool = True, *others: dict[str, object]) -> Iterator[str]:
    """The address of a server that has the page and names a model, or several, and cannot
    answer."""
    model = {"id": "m", "chat": chat, "context_length": 100, "sampling": {"temperature": 0.5}}

    async def models(request: Request) -> JSONResponse:
        return JSONResponse({"data": [*others, model]})

    routes = [Route("/", page), Route("/page/{name}", page), Route("/v1/models", models)]
    app = Starlette(routes=routes)
    server = HttpServer(app, ClientLimits(), shutdown_s=1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


# What a test does and sees on the page

WINDOWS = [(1280, 800), (1920, 1080), (390, 844)]
"""Sizes of windows."""
BUDGET = {
    "budget_bytes": 800 << 20,
    "planned_bytes": 790 << 20,
    "smallest_bytes": 300 << 20,
    "resident_bytes": 700 << 20,
    "pinned_bytes": 500 << 20,
    "streamed_bytes": 400 << 20,
    "cache_bytes": 90 << 20,
    "gain": 1.5,
    "most_bytes": 1 << 40,
    "follows": False,
}
"""The server's report of its memory."""


def rect(page: Browser, selector: str, edge: str) -> float:
    """An edge of the last element of a selector, in pixels of the window."""
    return page.run(
        f"return [...document.querySelectorAll('{selector}')].at(-1).getBoundingClientRect().{edge}"
    )


def drawn(page: Browser) -> None:
    """Wait for two frames: one that draws what came, one that has shown it."""
    page.run(
        "window.isDrawn = false;"
        "requestAnimationFrame(() => requestAnimationFrame(() => window.isDrawn = true))"
    )
    page.until("window.isDrawn")


def assert_end_is_seen(page: Browser, selector: str) -> None:
    bottom = rect(page, selector, "bottom")
    assert rect(page, "#log", "top") < bottom <= rect(page, "form", "top")
    assert rect(page, "form", "bottom") <= page.run("return innerHeight") + 0.5
    seen = page.run(
        f"const part = [...document.querySelectorAll('{selector}')].at(-1);"
        "const {left, bottom} = part.getBoundingClientRect();"
        "return part.contains(document.elementFromPoint(left + 20, bottom - 12))"
    )
    assert seen, "something lies over the newest text"


def begin(page: Browser, question: str, answer: str) -> None:
    """Ask, and let the answer go on."""
    answering(page, answer)
    ask(page, question)
    page.until("window.asked.length")
    drawn(page)


def finish(page: Browser) -> None:
    page.run("end()")
    page.until("!document.querySelector('#send').hidden")
    drawn(page)


def converse(page: Browser, question: str, answer: str) -> None:
    begin(page, question, answer)
    finish(page)


KEPT = """return new Promise(resolve => {
  indexedDB.open("edgespec").onsuccess = ({target: {result: database}}) => {
    const store = database.transaction("conversations").objectStore("conversations");
    store.getAll().onsuccess = ({target: {result: copies}}) => {
      database.close();
      resolve(copies.flatMap(one => [one.system, ...one.messages.map(one => one.content)]));
    };
  };
})"""
"""The texts of all system messages and messages that the browser keeps."""


def kept(page: Browser, *wanted: str) -> None:
    """Wait until the browser keeps these texts and no others."""
    deadline = time.monotonic() + PATIENCE_S
    while sorted(found := [*filter(None, page.run(KEPT))]) != sorted(wanted):
        assert time.monotonic() < deadline, found


def reload(page: Browser) -> None:
    page.run("location.reload()")
    page.until("document.readyState === 'complete' && document.title === 'm'")


def texts(page: Browser, selector: str) -> list[str]:
    return page.run(
        f"return [...document.querySelectorAll('{selector}')].map(part => part.textContent.trim())"
    )


def press(page: Browser, name: str, place: int = -1) -> None:
    page.run(f"[...document.querySelectorAll('[aria-label={name}]')].at({place}).click()")


KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "ArrowUp": 38}


def pressed(page: Browser, key: str) -> None:
    """Press a key where the focus is."""
    for kind in ("rawKeyDown", "keyUp"):
        parameters = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
        if key in "Enter " and kind == "rawKeyDown":
            parameters |= {"type": "keyDown", "text": key.replace("Enter", "\r")}
        page._devtools("Input.dispatchKeyEvent", parameters)


def walk_to(page: Browser, label: str) -> None:
    """Press Tab until the control with this name has the focus."""
    for _ in range(60):
        named = page.run(
            "const e = document.activeElement;"
            "return e.getAttribute('aria-label') || (e.labels?.[0] || e).textContent.trim()"
        )
        if named.startswith(label):
            return
        pressed(page, "Tab")
    raise AssertionError(f"Tab never came to {label}")


def typed(page: Browser, text: str) -> None:
    """Type a text where the focus is."""
    page._devtools("Input.insertText", {"text": text})


def in_theme(page: Browser, theme: str) -> None:
    """Let the system prefer a theme; empty: none."""
    features = [{"name": "prefers-color-scheme", "value": theme}] if theme else []
    page._devtools("Emulation.setEmulatedMedia", {"features": features})


AXE = Path(__file__).parent / "data/axe/axe.min.js"
"""Deque's checks of accessibility, of the npm package axe-core 4.14.1."""


def violations(page: Browser) -> list[str]:
    """Axe's findings on the page, by rule and element."""
    page.run(AXE.read_text(encoding="utf-8"))
    page.run(
        "window.found = null; axe.run().then(result => { window.found = result; },"
        " error => { window.found = {error: String(error)}; })"
    )
    page.until("window.found")
    assert page.run("return found.passes?.length > 15"), page.run("return found.error")
    found: list[str] = page.run(
        "return found.violations.flatMap(({id, nodes}) =>"
        " nodes.map(node => `${id}: ${node.target.join(' ')}`))"
    )
    return found


def console(page: Browser) -> list[str]:
    """Errors and warnings of the page's console since the last call."""
    content = {"type": "browser"}
    return [one["message"] for one in page._post(f"/session/{page._session}/se/log", content)]
