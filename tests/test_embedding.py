"""The programs of docs/embedding.md run as they stand there."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

import edgespec
from edgespec.models.embedded import embedded_pair

PAGE = Path(__file__).parents[1] / "docs" / "embedding.md"
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


def program(name: str, folder: Path) -> Path:
    """A code block of the page, which begins with its file's name, as that file."""
    blocks = re.findall(r"^```\w+\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if block.startswith(f"# {name}")]
    path = folder / name
    path.write_text(code)
    return path


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the service has a Unix socket")
def test_the_service_answers_and_ends_when_it_is_told(tmp_path):
    pair, path = embedded_pair(), tmp_path / "socket"
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notices.bind(str(tmp_path / "notify"))
    notices.settimeout(120)
    command = [sys.executable, program("service.py", tmp_path), path, pair.target, pair.draft]
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
    program("window.py", tmp_path)
    (tmp_path / "driver.py").write_text(DRIVER)
    done = subprocess.run(
        ["xvfb-run", "-a", sys.executable, tmp_path / "driver.py", pair.target, pair.draft],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > len("def f(")


def test_the_unit_names_the_service_and_waits_for_it():
    (unit,) = re.findall(r"^```ini\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    parsed = ConfigParser(interpolation=None)
    parsed.read_string(unit)
    assert parsed["Service"]["Type"] == "notify"
    assert "service.py" in parsed["Service"]["ExecStart"]
