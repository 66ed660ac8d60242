"""The page of the server in a real browser, driven by WebDriver's own protocol."""

import re
import shutil
import subprocess
import time

import httpx
import pytest

from edgespec.server.guarding import Guard
from server_running import pair, serving

PATIENCE_S = 60
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromedriver") is None, reason="there is no Chromium with its driver"
    ),
]


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
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage"]}
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

    def until(self, script: str):
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self.run(f"return {script}")):
            assert time.monotonic() < deadline, f"waited in vain for {script}"
        return value

    def close(self) -> None:
        self._http.delete(f"/session/{self._session}")
        self._http.close()
        self._driver.terminate()
        assert self._driver.stdout is not None
        self._driver.stdout.close()
        self._driver.wait()


@pytest.fixture(scope="module")
def browser():
    running = Browser()
    yield running
    running.close()


@pytest.fixture(scope="module")
def session():
    with pair() as loaded:
        yield loaded


def test_a_conversation_in_the_browser(browser, session):
    with serving(session, Guard("127.0.0.1")) as address:
        browser.open(address)
        browser.until("document.title === 'pair'")
        browser.write("#text", "write gcd\ue007")  # Enter
        browser.until("document.querySelector('.assistant')?.textContent")
        browser.until("!document.querySelector('#send').hidden")
        shown = browser.run("return document.querySelector('.assistant').textContent")
    with session.chat([{"role": "user", "content": "write gcd"}]) as generation:
        assert shown == "".join(event.text for event in generation)


def test_what_the_model_writes_is_never_markup(browser, session):
    with serving(session) as address:
        browser.open(address)
        browser.until("document.title === 'pair'")
        browser.write("#text", "<img src=x onerror=alert(1)>\ue007")
        browser.until("!document.querySelector('#send').hidden")
        assert browser.run("return document.querySelector('.user').textContent").startswith("<img")
        assert browser.run("return document.querySelectorAll('#log img').length") == 0


def test_stop_ends_the_answer(browser, session):
    with serving(session) as address:
        browser.open(address)
        browser.until("document.title === 'pair'")
        browser.write("#text", "go on\ue007")
        browser.run("document.querySelector('#stop').click()")
        browser.until("!document.querySelector('#send').hidden")
        for _ in range(1000):
            if httpx.get(f"{address}/health").json()["requests_in_progress"] == 0:
                return
        raise AssertionError("the answer goes on")
