"""Commands end to end on a session of known words: streams, JSON, exit codes, nothing left open."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgespec import session
from edgespec.cli import entry
from edgespec.engine.sampling import SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, ModelError, PairError, WeightReadError
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.values import GenerationResult, SpeculationStats, Timings, TokenEvent

MIB = 1 << 20
PLAN = MemoryPlan(
    budget_bytes=100 * MIB,
    rows=(MemoryRow("process", "interpreter", 40 * MIB), MemoryRow("target", "weights", 50 * MIB)),
    segments=(),
    pinned=frozenset(),
    ring_bytes=0,
    paged=False,
    smallest_bytes=60 * MIB,
)
WORDS = (
    TokenEvent("one", 1, "target", 0),
    TokenEvent("", 2, "draft", 1),
    TokenEvent(" two", 3, "draft", 1),
)


@dataclass
class FakeSession:
    """Says WORDS, or does `instead`; remembers what it was asked."""

    instead: Callable[[], None] = lambda: None
    plan: MemoryPlan = PLAN
    load_report: dict[str, float] = field(default_factory=lambda: {"total": 0.5})
    is_closed: bool = False
    is_generating: bool = False
    load_settings: Any = None
    engine_settings: EngineSettings | None = None
    prompt: str = ""
    sampling: SamplingParams | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()

    def load(self, settings, engine_settings=None, progress=None, trace=None) -> FakeSession:
        self.load_settings, self.engine_settings = settings, engine_settings
        return self

    def stream(
        self, prompt, sampling=None, max_tokens=None, stop=(), progress=None
    ) -> Generator[TokenEvent, None, GenerationResult]:
        self.prompt, self.sampling, self.max_tokens, self.stop = prompt, sampling, max_tokens, stop
        self.is_generating = True
        try:
            self.instead()
            yield from WORDS
        finally:
            self.is_generating = False
        return GenerationResult(
            text="one two",
            prompt_tokens=(7, 8),
            tokens=(1, 2, 3),
            finish_reason="length",
            timings=Timings(prompt_s=0.1, first_token_s=0.2, decode_s=1.5, tokens_per_s=2.0),
            speculation=SpeculationStats(rounds=2, drafted=4, verified=3, accepted=1),
            notes=("a note",),
        )

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *error: object) -> None:
        assert not self.is_generating, "a generation has to be closed before its session"
        self.is_closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    fake = FakeSession()
    monkeypatch.setattr(session, "load", fake.load)
    return fake


def refuse_to_load(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def load(*args: object) -> None:
        raise error

    monkeypatch.setattr(session, "load", load)
    monkeypatch.setattr(session, "plan", load)


def raising(error: BaseException) -> Callable[[], None]:
    def instead() -> None:
        raise error

    return instead


def test_the_text_and_nothing_else_goes_to_stdout(fake: FakeSession, capsys):
    assert entry.main(["generate", "-p", "hi"]) == 0
    out, err = capsys.readouterr()
    assert out == "one two"
    assert "3 tokens in 1.50 s" in err
    assert "1 of 3 verified guesses stood" in err
    assert "a note" in err
    assert fake.is_closed


def test_quiet_says_nothing_but_the_text(fake: FakeSession, capsys):
    assert entry.main(["generate", "-m", "m.gguf", "-p", "hi", "--quiet"]) == 0
    assert capsys.readouterr() == ("one two", "")


def test_color_marks_what_the_draft_had_guessed(fake: FakeSession, capsys):
    assert entry.main(["generate", "-p", "hi", "--color", "always"]) == 0
    assert capsys.readouterr().out == "one\x1b[32m two\x1b[0m"


def test_json_is_one_object_with_the_promised_keys(fake: FakeSession, capsys):
    assert entry.main(["generate", "-p", "hi", "--json", "--seed", "5"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {key: report[key] for key in ("text", "prompt_tokens", "tokens", "finish_reason")} == {
        "text": "one two",
        "prompt_tokens": [7, 8],
        "tokens": [1, 2, 3],
        "finish_reason": "length",
    }
    assert report["timings"] == {
        "load_s": 0.5,
        "prompt_s": 0.1,
        "first_token_s": 0.2,
        "decode_s": 1.5,
        "tokens_per_s": 2.0,
    }
    wanted = {"rounds", "target_passes", "drafted", "verified", "accepted"}
    assert wanted | {"tokens_per_pass", "provisional_kept"} <= report["speculation"].keys()
    wanted = {"segments", "pinned_bytes", "streamed_bytes", "bytes_read", "stall_s", "passes"}
    assert wanted <= report["paging"].keys()
    assert report["memory"]["budget_bytes"] == 100 * MIB
    assert report["memory"]["planned_bytes"] == 90 * MIB
    assert report["memory"]["peak_bytes"] > 0
    assert (report["seed"], report["notes"]) == (5, ["a note"])


def test_flags_reach_the_session(fake: FakeSession):
    command = "generate -m big.gguf -md small.gguf -n 9 -c 128 -t 3 -ctk q8_0 --memory-budget 2G"
    command += " --temp 0.5 --top-k 7 --seed 3 --stop A --stop B --pacer linear --fallback fixed"
    command += " --draft-max 5 --no-overlap"
    assert entry.main([*command.split(), "-p", "hi"]) == 0
    load = fake.load_settings
    assert (load.model, load.draft) == (Path("big.gguf"), Path("small.gguf"))
    assert (load.ctx_size, load.threads, load.cache_type_k) == (128, 3, "q8_0")
    assert load.memory_budget == 2 << 30
    assert fake.engine_settings == EngineSettings(
        pacer="linear", fallback="fixed", draft_max=5, overlap=False
    )
    assert fake.sampling == SamplingParams(temperature=0.5, top_k=7, seed=3)
    assert (fake.prompt, fake.max_tokens, fake.stop) == ("hi", 9, ("A", "B"))


def test_no_limit_is_none(fake: FakeSession):
    assert entry.main(["generate", "-p", "hi", "-n", "-1"]) == 0
    assert fake.max_tokens is None


def test_the_seed_is_random_and_reported(fake: FakeSession, capsys):
    assert entry.main(["generate", "-p", "hi", "--temp", "1"]) == 0
    assert fake.sampling is not None
    assert f"seed: {fake.sampling.seed}" in capsys.readouterr().err


def test_without_models_the_embedded_pair_is_used(fake: FakeSession):
    assert entry.main(["generate", "-p", "hi"]) == 0
    assert fake.load_settings.model.name.startswith("edgespec-target")
    assert fake.load_settings.draft.name.startswith("edgespec-draft")


def test_a_target_without_a_draft_is_told_so(fake: FakeSession, capsys):
    assert entry.main(["generate", "-m", "m.gguf", "-p", "hi"]) == 0
    assert "no draft" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ModelError("not a GGUF"), 3),
        (PairError("token 5 differs"), 3),
        (BudgetError("too small", 77), 4),
        (WeightReadError("I/O error"), 1),
        (RuntimeError("a surprise"), 1),
        (OSError(5, "broken"), 1),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys, error: Exception, exit_code: int
):
    refuse_to_load(monkeypatch, error)
    assert entry.main(["generate", "-p", "hi"]) == exit_code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("edgespec: error: ")
    assert str(error) in err
    assert err.count("\n") == 1


def test_an_error_with_json_is_an_object_too(monkeypatch: pytest.MonkeyPatch, capsys):
    refuse_to_load(monkeypatch, BudgetError("too small", 77))
    assert entry.main(["plan", "--json"]) == 4
    out, err = capsys.readouterr()
    assert json.loads(out) == {
        "error": {
            "message": "too small",
            "type": "BudgetError",
            "exit_code": 4,
            "smallest_bytes": 77,
        }
    }
    assert "too small" in err


def test_a_traceback_is_shown_on_request_only(monkeypatch: pytest.MonkeyPatch, capsys):
    refuse_to_load(monkeypatch, RuntimeError("a surprise"))
    monkeypatch.setenv("EDGESPEC_DEBUG", "1")
    assert entry.main(["generate", "-p", "hi"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_error_while_generating_closes_the_session(fake: FakeSession, capsys):
    fake.instead = raising(WeightReadError("cut short"))
    assert entry.main(["generate", "-p", "hi"]) == 1
    assert fake.is_closed


def test_ctrl_c_closes_the_session(fake: FakeSession, capsys):
    fake.instead = raising(KeyboardInterrupt())
    assert entry.main(["generate", "-p", "hi"]) == 130
    assert fake.is_closed
    assert capsys.readouterr().err == "edgespec: error: interrupted\n"


def test_an_error_takes_the_place_of_a_progress_line(monkeypatch: pytest.MonkeyPatch):
    refuse_to_load(monkeypatch, WeightReadError("cut short"))
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    assert entry.main(["generate", "-p", "hi"]) == 1
    assert terminal.getvalue().endswith("edgespec: error: cut short\x1b[K\n")


def test_sigterm_is_like_ctrl_c(fake: FakeSession):
    def terminate() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    before = signal.getsignal(signal.SIGTERM)
    fake.instead = terminate
    assert entry.main(["generate", "-p", "hi"]) == 130
    assert fake.is_closed
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_reader_that_leaves_ends_the_generation_quietly(
    fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys
):
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as closed_pipe:
        monkeypatch.setattr(sys, "stdout", closed_pipe)
        assert entry.main(["generate", "-p", "hi"]) == 1
    assert fake.is_closed
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_behind_stdout_is_an_error(
    fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys
):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert entry.main(["generate", "-p", "hi"]) == 1
    assert "No space left" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "a command is missing"),
        ("genrate", "invalid choice: 'genrate'"),
        ("generate --pacre linear -p hi", "unknown flag --pacre; did you mean '--pacer'?"),
        ("generate hi", "unexpected argument 'hi'"),
        ("generate -p", "expected one argument"),
        ("generate -p hi -f file", "--prompt and --file contradict each other"),
        ("generate -f /nonexistent", "--file /nonexistent: No such file"),
        ("generate -p hi --top-p 1.5", "--top-p 1.5"),
        ("generate -p hi -n -2", "--n-predict -2"),
        ("generate -p hi -c -1", "--ctx-size -1"),
        ("generate -p hi --pacer llmcat", "did you mean 'llmcad'?"),
        ("generate -p hi --no-draft --pacer linear", "--pacer has no effect without a draft"),
        ("generate -p hi -m m.gguf --draft-max 3", "--draft-max has no effect without a draft"),
        ("generate -p hi -m m.gguf -md d.gguf --no-draft", "contradicts --model-draft"),
        ("generate -p hi -md d.gguf", "--model-draft needs the model"),
        ("generate -p hi -m m.gguf -ngld 3", "--n-gpu-layers-draft needs a draft"),
        ("generate -p hi --json --color always", "--color always cannot apply to --json"),
        ("generate -p hi --config memory-9gb", "did you mean 'memory-"),
        ("plan --disk-bandwidth fast", "'fast' is not a size"),
        ("models", "COMMAND"),
        ("models enlarge embedded out.gguf", "--size"),
        ("demo -n -7", "--n-predict -7"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys, command: str, message: str
):
    monkeypatch.setattr(session, "plan", lambda *args: PLAN)
    assert entry.main(command.split()) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def pipe_in(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_prompt_may_be_piped(fake: FakeSession, monkeypatch: pytest.MonkeyPatch):
    pipe_in(monkeypatch, "grüße\r\n".encode())
    assert entry.main(["generate"]) == 0
    assert fake.prompt == "grüße\r\n"


@pytest.mark.parametrize(("data", "message"), [(b"", "is empty"), (b"ok\xff", "byte 2")])
def test_a_pipe_without_text_is_refused(
    fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys, data: bytes, message: str
):
    pipe_in(monkeypatch, data)
    assert entry.main(["generate"]) == 2
    assert message in capsys.readouterr().err


def test_a_prompt_may_come_from_a_file(fake: FakeSession, tmp_path: Path):
    path = tmp_path / "prompt.txt"
    path.write_text("from a file\n")
    assert entry.main(["generate", "-f", str(path)]) == 0
    assert fake.prompt == "from a file\n"


def test_plan_prints_who_gets_what(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(session, "plan", lambda *args: PLAN)
    assert entry.main(["plan"]) == 0
    out = capsys.readouterr().out
    assert "interpreter" in out
    assert "40.0 MiB" in out
    assert entry.main(["plan", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["planned_bytes"] == 90 * MIB


def test_help_and_version_need_no_model_library():
    code = (
        "import sys; from edgespec.cli import entry; entry.main(['generate', '--help']);"
        "entry.main(['--version']);"
        "sys.exit(any(name in sys.modules for name in ('llama_cpp', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_may_be_cut_short():
    """The interpreter's own flush at exit complains when nobody prevents it."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "edgespec", "generate", "--help"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    run = subprocess.run(
        command, env=environ, stdout=write_end, stderr=subprocess.PIPE, check=False
    )
    os.close(write_end)
    assert (run.returncode, run.stderr) == (1, b"")


def test_closed_streams_do_no_harm():
    command = f"{sys.executable} -m edgespec --version >&- 2>&-"
    assert subprocess.run(command, shell=True, check=False).returncode == 0


def test_the_embedded_pair_answers_within_its_budget():
    """The whole program in a process of its own: two promises that only a process can keep."""
    pytest.importorskip("llama_cpp")
    command = [sys.executable, "-m", "edgespec", "generate", "--json", "--memory-budget", "256MiB"]
    command += ["-p", "def gcd(a, b):\n", "-n", "8"]
    run = subprocess.run(command, capture_output=True, check=True)
    report = json.loads(run.stdout)
    assert len(report["tokens"]) == 8
    assert report["memory"]["peak_bytes"] <= report["memory"]["budget_bytes"] == 256 * MIB
