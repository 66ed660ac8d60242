"""All that a text needs is imported before its plan is made, which counts it as the process's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError
from edgespec.models.embedded import default_file, manifest, models_folder
from edgespec.rules.sampling import SamplingParams
from edgespec.session import prepared_models, session
from edgespec.settings.config import LoadSettings

mixture = models_folder() / default_file(manifest().mixture).file
settings, sampling = LoadSettings(model=mixture), SamplingParams(temperature=0.8)
try:
    session.plan(settings.model_copy(update=dict(memory_budget=1)))
except BudgetError as error:
    smallest_bytes = error.smallest_bytes
make_plan, planned = prepared_models.plan_models, []

def plan_models(*arguments, **named):
    planned.append(set(sys.modules))
    return make_plan(*arguments, **named)

prepared_models.plan_models = plan_models
limited = settings.model_copy(update=dict(memory_budget=smallest_bytes - (4 << 20)))
with session.load(limited, EngineSettings(remember=False)) as running:
    assert running.plan.paged
    running.generate("def f(", sampling, max_tokens=8)
print(*sorted(set(sys.modules) - planned[-1]))
"""

CONVERSATION = """
import edgespec
from edgespec.memory.process import peak_rss_bytes
from edgespec.models.embedded import embedded_pair

settings = edgespec.LoadSettings(model=embedded_pair().target)
try:
    edgespec.plan(settings.model_copy(update=dict(memory_budget=1)))
except edgespec.BudgetError as error:
    settings = settings.model_copy(update=dict(memory_budget=error.smallest_bytes))
with edgespec.load(settings, edgespec.EngineSettings(remember=False)) as session:
    session.use_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    messages = [dict(role="user", content="hello")]
    session.create_chat_completion(messages=messages, max_tokens=4, logprobs=True)
    for _ in session.chat(messages, max_tokens=4):
        pass
    assert peak_rss_bytes() <= settings.memory_budget, (peak_rss_bytes(), settings.memory_budget)
"""

SMALLEST = """
import sys
import edgespec
from edgespec.memory.process import peak_rss_bytes
from edgespec.models.embedded import embedded_pair

pair = embedded_pair()
settings = edgespec.LoadSettings(model=pair.target, draft=pair.draft, ctx_size=128, threads=1)
if len(sys.argv) == 1:
    print(edgespec.plan(settings).smallest_bytes)
else:
    settings = settings.model_copy(update=dict(memory_budget=int(sys.argv[1])))
    with edgespec.load(settings) as session:
        session.generate("hello", max_tokens=4)
    print(peak_rss_bytes() / settings.memory_budget, session.plan.rows[0].nbytes)
"""

CHAT = """
import sys
from edgespec.cli.command_line import main
from edgespec.session import prepared_models

make_plan, planned = prepared_models.plan_models, []

def plan_models(*arguments, **named):
    planned.append(set(sys.modules))
    return make_plan(*arguments, **named)

prepared_models.plan_models = plan_models
code = main(sys.argv[1:])
late = {name for name in set(sys.modules) - planned[-1] if not name.startswith("encodings")}
print("late:", *sorted(late))
sys.exit(code)
"""


def test_nothing_is_imported_after_the_plan() -> None:
    """numpy.ma, which numpy.unique imports, took 10 MiB where no bytecode of it was kept: a
    mixture's peak was 1.003 of its budget."""
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == []


def test_a_conversation_fits_into_the_smallest_budget() -> None:
    """jinja2 and the shapes of OpenAI's API come with the first one."""
    run = subprocess.run(
        [sys.executable, "-c", CONVERSATION], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr


def test_the_budget_that_is_named_suits_a_process_that_writes_bytecode_first(
    tmp_path: Path,
) -> None:
    """Compiling all modules leaves megabytes between others: such a process was refused."""

    def said(*words: str, **variables: str) -> list[str]:
        command = [sys.executable, "-c", SMALLEST, *words]
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | variables
        return subprocess.run(
            command, capture_output=True, text=True, check=True, env=kept
        ).stdout.split()

    said(PYTHONPYCACHEPREFIX=str(tmp_path / "kept"))
    (smallest,) = said(PYTHONPYCACHEPREFIX=str(tmp_path / "kept"))
    for _ in range(2):
        share, _ = said(smallest, PYTHONPYCACHEPREFIX=str(tmp_path / "none"))
        assert float(share) <= 1


@pytest.mark.slow
def test_a_chat_imports_nothing_after_its_plan(tmp_path: Path) -> None:
    """jinja2 came with the first message."""
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    flags = ["-m", "embedded", "--chat-template", f"@{template}", "-n", "4"]
    command = [sys.executable, "-c", CHAT, "chat", *flags]
    run = subprocess.run(command, input="hello\n", capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "late:"
