"""Coding agents, headless, mend a file through the server, with a model that makes right calls.

They are installed once, in pytest's cache folder; where one cannot be, its test is skipped with the
reason.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import edgespec
from client_packages import packages_in
from edgespec import extras, registry
from edgespec.settings import options
from scripted_model import ScriptedRuntime
from server_running import serving

HERE = Path(__file__).parent
TEMPLATE = (HERE / "tools.jinja").read_text()
START = "<|im_start|>assistant\n"
WRONG = 'def add(a, b):\n    return a - b\n\n\nassert add(2, 3) == 5\nprint("fine")\n'
ASKED = "calc.py fails: mend the sum"
MEND = "sed -i 's/a - b/a + b/' calc.py && python3 calc.py"
CALLS = {
    "Bash": {"command": MEND, "description": "Mend the sum"},
    "bash": {"command": MEND, "description": "Mend the sum"},
    "exec_command": {"cmd": MEND},
}
"""Arguments of the tools that run a command, by the names that the agents give them."""
DIFF = """\
calc.py
```python
<<<<<<< SEARCH
    return a - b
=======
    return a + b
>>>>>>> REPLACE
```
"""
CODEX = """
model = "m.script"
model_provider = "edgespec"
[model_providers.edgespec]
name = "edgespec"
base_url = "{address}/v1"
wire_api = "responses"
"""
OPENCODE = {
    "model": "edgespec/m.script",
    "autoupdate": False,
    "share": "disabled",
    "provider": {
        "edgespec": {
            "npm": "@ai-sdk/openai-compatible",
            "models": {"m.script": {"limit": {"context": 100_000, "output": 8_000}}},
        }
    },
}

pytestmark = pytest.mark.long


def script(prompt: str) -> str:
    """A call of the first turn, a sentence in the second, a title without tools."""
    if "SEARCH/REPLACE" in prompt:
        return DIFF
    names = re.findall(r'"name": "(\w+)"', prompt)
    name = next((name for name in CALLS if name in names), None)
    if name is None:
        return "Mend the sum"
    if prompt.count(START) > 1:
        return "The sum is mended."
    call = json.dumps({"name": name, "arguments": CALLS[name]})
    return f"<tool_call>\n{call}\n</tool_call>"


RUNTIME = ScriptedRuntime(script, START)


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    found = (EntryPoint("script", f"{__name__}:RUNTIME", registry.ENTRY_POINTS),)
    for asking in (extras, options, registry):
        monkeypatch.setattr(
            asking, "entry_points", lambda group: {registry.ENTRY_POINTS: found}.get(group, ())
        )
    model = tmp_path / "m.script"
    model.touch()
    with edgespec.load(edgespec.LoadSettings(model=model)) as session:
        session.use_chat_template(TEMPLATE)
        with serving(session) as address:
            yield address


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "calc.py").write_text(WRONG)
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


@pytest.fixture
def run(
    request: pytest.FixtureRequest, pytestconfig: pytest.Config, repository: Path
) -> Callable[..., str]:
    """Runs the test's agent in the repository and checks that it mended the file; returns what it
    printed."""
    name, package, command = request.param
    try:
        place = packages_in(pytestconfig.cache.mkdir("clients"), name, [package])
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        pytest.skip(f"{package} cannot be installed: {said.strip()[-300:]}")

    def its(*arguments: str, **environment: str) -> str:
        home = repository.parent / "home"
        home.mkdir()
        done = subprocess.run(
            [place / command, *arguments],
            check=False,
            cwd=repository,
            env={
                **os.environ,
                "HOME": str(home),
                "XDG_CONFIG_HOME": str(home),
                "PWD": str(repository),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert "return a + b" in (repository / "calc.py").read_text(), said
        return said

    return its


def agent(package: str, command: str) -> pytest.MarkDecorator:
    name = command.rpartition("/")[2]
    return pytest.mark.parametrize("run", [(name, package, command)], indirect=True, ids=[name])


@agent("@anthropic-ai/claude-code@2.1.197", "node_modules/.bin/claude")
def test_claude_code(address: str, run: Callable[..., str]) -> None:
    said = run(
        "-p",
        ASKED,
        "--dangerously-skip-permissions",
        IS_SANDBOX="1",
        ANTHROPIC_BASE_URL=address,
        ANTHROPIC_AUTH_TOKEN="none",
        ANTHROPIC_MODEL="m.script",
        ANTHROPIC_SMALL_FAST_MODEL="m.script",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
    )
    assert "The sum is mended." in said


@agent("@openai/codex@0.171.0", "node_modules/.bin/codex")
def test_codex(address: str, repository: Path, run: Callable[..., str]) -> None:
    settings = repository.parent / "home/.codex/config.toml"
    codex = repository.parent / "codex"
    codex.mkdir()
    (codex / settings.name).write_text(CODEX.format(address=address))
    said = run(
        "exec",
        "--dangerously-bypass-approvals-and-sandbox",
        ASKED,
        CODEX_HOME=str(codex),
    )
    assert "The sum is mended." in said


@agent("opencode-ai@1.18.33", "node_modules/.bin/opencode")
def test_opencode(address: str, repository: Path, run: Callable[..., str]) -> None:
    settings = json.loads(json.dumps(OPENCODE))
    settings["provider"]["edgespec"]["options"] = {"baseURL": f"{address}/v1", "apiKey": "none"}
    path = repository.parent / "opencode.json"
    path.write_text(json.dumps(settings))
    assert "The sum is mended." in run("run", ASKED, OPENCODE_CONFIG=str(path))


@agent("aider-chat==0.86.2", "bin/aider")
def test_aider(address: str, run: Callable[..., str]) -> None:
    run(
        *(
            "--model",
            "openai/m.script",
            "--edit-format",
            "diff",
            "--yes-always",
            "--no-auto-commits",
        ),
        *(
            "--no-analytics",
            "--no-check-update",
            "--no-show-release-notes",
            "--no-show-model-warnings",
        ),
        *("--message", ASKED, "calc.py"),
        OPENAI_API_BASE=f"{address}/v1",
        OPENAI_API_KEY="none",
    )
