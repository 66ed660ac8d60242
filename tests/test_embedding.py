"""The programs in examples/, which docs/embedding.md shows, run as they are."""

import io
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import edgespec
from commands_here import run_here
from edgespec.models.embedded import embedded_pair
from server_running import pair as served_pair
from server_running import serving

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
DRIVER = """
import window, edgespec, sys
def drive(self):
    if not self.begun:
        self.text.insert("1.0", "def f("); self.go_on(); self.begun = True
    elif self.generation is None:
        print(len(self.text.get("1.0", "end-1c"))); self.leave(); return
    self.after(20, self.drive)
window.Window.begun, window.Window.drive = False, drive
with edgespec.load(edgespec.LoadSettings(model=sys.argv[1], draft=sys.argv[2])) as session:
    shown = window.Window(session); shown.drive(); shown.mainloop()
"""


def run(name: str, *arguments: object) -> str:
    """Standard output of an example, run as the main program in this process."""
    written = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(written):
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return written.getvalue()


@pytest.mark.slow
def test_a_streamed_text_is_what_the_target_writes_alone():
    pair = embedded_pair()
    written = run("stream.py", pair.target, pair.draft, "import ")
    with edgespec.load(edgespec.LoadSettings(model=pair.target)) as session:
        assert written == "import " + session.generate("import ", max_tokens=64).text


@pytest.mark.slow
def test_texts_of_one_event_loop_are_those_written_alone():
    pair = embedded_pair()
    written = run("two_at_once.py", pair.target, pair.draft, "import ", "class Queue:")
    with edgespec.load(edgespec.LoadSettings(model=pair.target)) as session:
        texts = [p + session.generate(p, max_tokens=32).text for p in ("import ", "class Queue:")]
    assert written == "".join(f"{text}\n" for text in texts)


@pytest.mark.slow
def test_each_prompt_of_a_file_gets_its_text(tmp_path):
    pair, file = embedded_pair(), tmp_path / "prompts.txt"
    prompts = ["import ", "class Queue:", "def f("]
    file.write_text("\n".join(prompts))
    written = run("many.py", pair.target, pair.draft, file)
    with edgespec.load(edgespec.LoadSettings(model=pair.target)) as session:
        texts = [session.generate(prompt, max_tokens=32).text for prompt in prompts]
    assert written == "".join(f"{text!r}\n" for text in texts)


@pytest.mark.slow
def test_the_file_of_requests_is_answered(tmp_path):
    answers = tmp_path / "answers.jsonl"
    assert run_here("batch", EXAMPLES / "requests.jsonl", answers).code == 0
    lines = map(json.loads, answers.read_text().splitlines())
    found = {line["custom_id"]: line["response"] for line in lines}
    assert {name: len(response["body"]["choices"]) for name, response in found.items()} == (
        {"gcd": 1, "queue": 1, "two": 2}
    )


@pytest.mark.slow
def test_the_client_prints_what_the_server_streams():
    with served_pair(memory_budget="1GiB") as session, serving(session) as address:
        question = {"role": "user", "content": "write gcd"}
        expected = session.create_chat_completion([question], max_tokens=32, temperature=0)
        written = run("client.py", f"{address}/v1", "write gcd")
    assert written == expected["choices"][0]["message"]["content"] + "\n"


@pytest.mark.slow
def test_the_web_application_streams_and_tells_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastapi.testclient import TestClient  # most of a second, in every process that collects

    pair = embedded_pair()
    monkeypatch.setenv("MODEL", str(pair.target))
    monkeypatch.setenv("DRAFT", str(pair.draft))
    app = runpy.run_path(str(EXAMPLES / "web.py"))["app"]
    with TestClient(app) as client:
        written = client.post("/write", params={"prompt": "import ", "max_tokens": 12}).text
        wrong = client.post("/chat", json=[{"role": "wizard", "content": "a"}])
        assert (wrong.status_code, "template" in wrong.json()["detail"]) == (400, True)
        memory = client.get("/memory").json()
        asked = {"prompt": "import ", "max_tokens": 900}
        with client.stream("POST", "/write", params=asked) as left:
            next(left.iter_text())
        assert client.post("/write", params={"prompt": "import ", "max_tokens": 12}).text == written
    assert memory["budget_bytes"] == 1 << 30
    assert memory["peak_bytes"] > 0
    with edgespec.load(edgespec.LoadSettings(model=pair.target)) as session:
        assert written == session.generate("import ", max_tokens=12).text


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the service has a Unix socket")
def test_the_service_answers_and_ends_when_it_is_told(tmp_path):
    pair, path = embedded_pair(), tmp_path / "socket"
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.bind(str(tmp_path / "notify"))
    notices.settimeout(120)
    command = [sys.executable, EXAMPLES / "service.py", path, pair.target, pair.draft]
    with subprocess.Popen(
        command, env=os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")}
    ) as process:
        assert notices.recv(64) == b"READY=1"
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"import \n")
            with client.makefile() as lines:
                answer = lines.readline()
        process.send_signal(signal.SIGTERM)
        assert notices.recv(64) == b"STOPPING=1"
        assert process.wait(120) == 0
    notices.close()
    with edgespec.load(edgespec.LoadSettings(model=pair.target)) as session:
        assert answer == session.generate("import ", max_tokens=64, stop="\n").text + "\n"


@pytest.mark.skipif(shutil.which("xvfb-run") is None, reason="there is no Xvfb to show a window")
def test_the_window_shows_what_is_written(tmp_path):
    pair = embedded_pair()
    (tmp_path / "driver.py").write_text(DRIVER)
    done = subprocess.run(
        ["xvfb-run", "-a", sys.executable, tmp_path / "driver.py", pair.target, pair.draft],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(EXAMPLES), *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > len("def f(")
