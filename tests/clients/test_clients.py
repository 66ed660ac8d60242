"""Official clients against `edgespec serve` with SmolLM2, each in an environment of its own.

Environments are made once, in pytest's cache folder; where one cannot be installed, its tests are
skipped with the reason. `programs/` holds what each client does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from client_packages import packages_in

pytestmark = pytest.mark.long

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
PACKAGES = {
    "with_openai.py": ("openai==3.57.0",),
    "with_litellm.py": ("litellm==1.110.2", "openai==3.57.0"),
    "with_langchain.py": ("langchain-openai==1.7.4", "openai==3.57.0"),
    "with_pydantic_ai.py": ("pydantic-ai-slim[openai]==2.68.0", "openai==3.57.0"),
    "with_instructor.py": ("instructor==1.17.0", "openai==3.3.0"),
    "with_smolagents.py": ("smolagents[openai]==1.26.0", "openai==3.57.0"),
    "with_ai.mjs": ("ai@7.0.173", "@ai-sdk/openai-compatible@3.0.92", "zod@4.6.7"),
}
"""Versions with which the programs were tried, by program."""
RUN_S = 300
CHECKS = [
    (program, check)
    for program in PACKAGES
    for check in re.findall(r"(?:def|async) (check_\w+)", (PROGRAMS / program).read_text())
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of SmolLM2 with a chat template that has tools."""
    edgespec = [sys.executable, "-m", "edgespec"]
    pulled = subprocess.run(  # noqa: PLW1510 - a failure is a reason to skip
        [*edgespec, "models", "pull", "smollm2"], capture_output=True, text=True
    )
    if pulled.returncode:
        pytest.skip(f"SmolLM2 cannot be had: {pulled.stderr.strip()[-300:]}")
    log = tmp_path_factory.mktemp("server") / "log"
    template = ["--chat-template", f"@{HERE / 'tools.jinja'}"]
    command = [*edgespec, "serve", "-m", "smollm2", "-c", "4096", "--port", "0", *template]
    with log.open("w") as said:
        server = subprocess.Popen(command, stderr=said, stdout=said)
    try:
        while not (found := re.search(r"(http://[^/ ]+)/v1", log.read_text())):
            if server.poll() is not None:
                raise AssertionError(log.read_text())
            time.sleep(0.1)
        yield found[1]
    finally:
        server.terminate()
        server.wait(60)


Results = dict[str, str | None]
"""Errors of a program's checks by name; None for a check that passed."""


@pytest.fixture(scope="module")
def results_of(address: str, pytestconfig: pytest.Config) -> Callable[[str], Results | str]:
    """Runs a program once; a text is the reason why its client cannot be installed."""
    folder = pytestconfig.cache.mkdir("clients")

    @cache
    def results(program: str) -> Results | str:
        try:
            command = installed(folder, program)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            return f"{', '.join(PACKAGES[program])} cannot be installed: {said.strip()[-300:]}"
        environment = {"SERVER": address, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        done = subprocess.run(  # noqa: PLW1510 - the checks' own results are read
            command, capture_output=True, text=True, timeout=RUN_S, env=os.environ | environment
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert lines, done.stderr
        return {line["check"]: line["error"] for line in lines}

    return results


def installed(folder: Path, program: str) -> list[str]:
    """The command that runs a program, with its packages installed in a folder of their own."""
    place = packages_in(folder, program.partition(".")[0], PACKAGES[program])
    if program.endswith(".py"):
        return [str(place / "bin" / "python"), str(PROGRAMS / program)]
    # node looks for packages beside the program
    return ["node", shutil.copy(PROGRAMS / program, place)]


@pytest.mark.parametrize(("program", "check"), CHECKS)
def test_a_client_is_served(
    program: str, check: str, results_of: Callable[[str], Results | str]
) -> None:
    results = results_of(program)
    if isinstance(results, str):
        pytest.skip(results)
    assert results[check] is None, results[check]
