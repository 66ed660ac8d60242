"""The container and the services of systemd: health, what is kept, and what may be done."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from edgespec.cli import health

ROOT = Path(__file__).parents[1]
UNITS = sorted((ROOT / "examples").glob("*.service"))
MAX_EXPOSURE = 3.0
"""Most that `systemd-analyze security` may say, of 10."""


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None,
    reason="there is no systemd-analyze: apt install systemd",
)
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_service_may_do_little(unit):
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at files: it needs systemd 250")
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stderr
    assert float(found[1]) < MAX_EXPOSURE


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_service_may_keep_what_it_finds_out(unit):
    text = unit.read_text()
    (cache,) = re.findall(r"^Environment=XDG_CACHE_HOME=(\S+)$", text, re.MULTILINE)
    folders = re.findall(r"^(StateDirectory|CacheDirectory)=(\S+)$", text, re.MULTILINE)
    places = {"StateDirectory": "/var/lib/", "CacheDirectory": "%C/"}
    assert cache in {places[kind] + name for kind, name in folders}


def test_a_container_keeps_its_cache_in_a_volume():
    text = (ROOT / "Containerfile").read_text()
    (cache,) = re.findall(r"XDG_CACHE_HOME=(\S+)", text)
    (volumes,) = re.findall(r"^VOLUME (.*)$", text, re.MULTILINE)
    assert f'"{cache}"' in volumes
    assert f"install -d -o edgespec -g edgespec {cache}" in text


def test_a_containers_health_follows_its_port():
    text = (ROOT / "Containerfile").read_text()
    (check,) = re.findall(r"^HEALTHCHECK (.*)$", text, re.MULTILINE)
    assert check.endswith('CMD ["python", "-m", "edgespec.cli.health"]')


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/opt/edgespec/bin/python3", "/opt/edgespec/bin/edgespec", "serve", "--port", "1"], True),
        (["edgespec", "serve"], True),
        (["python", "-m", "edgespec", "serve"], True),
        (["tini", "--", "edgespec", "serve"], True),
        (["edgespec", "chat", "serve"], False),
        (["nginx", "serve"], False),
        ([], False),
    ],
)
def test_a_server_is_known_by_its_command(command, expected):
    assert health.is_server(command) is expected


LISTENER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" and STATUS == 200 else 503)
        self.end_headers()
        self.wfile.write(b"loading")
STATUS = int(sys.argv[1])
server = HTTPServer((sys.argv[2], 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.parametrize(("status", "host", "code"), [(200, "0.0.0.0", 0), (503, "127.0.0.1", 1)])
def test_the_check_asks_where_a_process_listens(status, host, code, capsys):
    command = [sys.executable, "-c", LISTENER, str(status), host]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        port = int(process.stdout.readline())
        try:
            assert list(health.addresses(process.pid)) == [f"http://127.0.0.1:{port}"]
            assert health.main([str(process.pid)]) == code
        finally:
            process.terminate()
    assert ("loading" in capsys.readouterr().err) == (code == 1)


def test_nothing_that_listens_is_no_health(capsys):
    assert health.main([str(os.getppid())]) == 1
    assert "no edgespec serve is listening" in capsys.readouterr().err


def test_a_process_that_may_not_be_asked_is_no_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Another user's program may have `edgespec serve` in its command line, too."""

    def refuse(process: psutil.Process, kind: str):
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "net_connections", refuse)
    assert health.main([str(os.getpid())]) == 1
    assert "no edgespec serve is listening" in capsys.readouterr().err
