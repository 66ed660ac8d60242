"""The container and the services of systemd: health, what is kept, and what may be done."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from edgespec.settings.config import ServerSettings

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


def test_a_containers_health_is_asked_where_the_server_listens():
    text = (ROOT / "Containerfile").read_text()
    (port,) = re.findall(r"^EXPOSE (\d+)$", text, re.MULTILINE)
    assert f"http://127.0.0.1:{port}/health" in text
    assert int(port) == ServerSettings().port
