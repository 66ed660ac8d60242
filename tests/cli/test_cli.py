"""Commands end to end on a session of known words: streams, JSON, exit codes, nothing left open."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from edgespec import session
from edgespec.bench.settings import BenchSettings
from edgespec.cli import entry, invocation
from edgespec.engine.sampling import SamplingParams
from edgespec.engine.settings import EngineSettings
from edgespec.errors import BudgetError, ModelError, PairError, WeightReadError
from edgespec.memory.budget import MemoryPlan, MemoryRow
from edgespec.values import GenerationResult, SpeculationStats, Timings, TokenEvent
from edgespec_runtimes.gguf.options import GgufOptions

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
    cancelled: threading.Event = field(default_factory=threading.Event)
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

    def cancel(self) -> None:
        self.cancelled.set()

    def stream(
        self, prompt, sampling=None, max_tokens=None, stop=(), progress=None, grammar=None
    ) -> Generator[TokenEvent, None, GenerationResult]:
        self.prompt, self.sampling, self.max_tokens, self.stop = prompt, sampling, max_tokens, stop
        self.is_generating = True
        try:
            self.instead()
            for word in WORDS:
                if not self.cancelled.is_set():
                    yield word
        finally:
            self.is_generating = False
        return GenerationResult(
            text="one two",
            prompt_tokens=(7, 8),
            tokens=(1, 2, 3),
            finish_reason="cancelled" if self.cancelled.is_set() else "length",
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
    command += " --draft-max 5 --no-overlap --draft-depth 4 --acceptance exact-replay"
    command += " --frequency-penalty 0.5 --presence-penalty -0.25 -l 7+1.5 --logit-bias 8-inf"
    assert entry.main([*command.split(), "-p", "hi"]) == 0
    load = fake.load_settings
    assert (load.model, load.draft) == (Path("big.gguf"), Path("small.gguf"))
    assert (load.ctx_size, load.threads) == (128, 3)
    assert load.options == {"gguf": GgufOptions(cache_type_k="q8_0")}
    assert load.memory_budget == 2 << 30
    assert fake.engine_settings == EngineSettings(
        pacer="linear", fallback="fixed", draft_max=5, max_depth=4, overlap=False
    )
    assert fake.sampling == SamplingParams(
        temperature=0.5,
        top_k=7,
        frequency_penalty=0.5,
        presence_penalty=-0.25,
        logit_bias={7: 1.5, 8: -math.inf},
        seed=3,
    )
    assert (fake.prompt, fake.max_tokens, fake.stop) == ("hi", 9, ("A", "B"))


def test_no_limit_is_none(fake: FakeSession):
    assert entry.main(["generate", "-p", "hi", "-n", "-1"]) == 0
    assert fake.max_tokens is None


def test_the_seed_is_random_and_reported(fake: FakeSession, capsys):
    assert entry.main(["generate", "-p", "hi", "--temp", "1"]) == 0
    assert fake.sampling is not None
    assert f"seed: {fake.sampling.seed}" in capsys.readouterr().err


def test_seed_minus_one_is_a_random_one_that_is_reported(fake: FakeSession, capsys):
    assert entry.main(["generate", "-p", "hi", "--temp", "1", "--seed", "-1"]) == 0
    assert fake.sampling is not None
    assert f"seed: {fake.sampling.seed}" in capsys.readouterr().err


def test_no_guesses_are_no_draft(fake: FakeSession, capsys):
    command = "generate -m m.gguf -md d.gguf --draft-max 0 -p hi"
    assert entry.main(command.split()) == 0
    assert fake.load_settings.draft is None
    assert "with at most 0 guesses there is nothing to load it for" in capsys.readouterr().err


def test_names_of_models_work_as_paths_do(fake: FakeSession):
    assert entry.main(["generate", "-m", "target", "-md", "edgespec-draft", "-p", "hi"]) == 0
    assert fake.load_settings.model.name.startswith("edgespec-target")
    assert fake.load_settings.draft.name.startswith("edgespec-draft")


def test_without_a_command_the_next_steps_are_shown(capsys):
    assert entry.main([]) == 2
    out, err = capsys.readouterr()
    assert "edgespec demo" in out and "edgespec generate -p" in out and "--help" in out
    assert max(map(len, out.splitlines())) < 90
    assert "a command is missing" in err


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


def interrupt_after_the_first_word(fake: FakeSession) -> None:
    """Ctrl-C while the second word is made."""

    def stream(*args: object) -> Generator[TokenEvent, None, GenerationResult]:
        yield WORDS[0]
        os.kill(os.getpid(), signal.SIGINT)
        assert fake.cancelled.wait(10)
        return GenerationResult(
            text="one tw",
            prompt_tokens=(7, 8),
            tokens=(1, 2),
            finish_reason="cancelled",
            speculation=SpeculationStats(rounds=2),
        )

    fake.stream = stream  # type: ignore[method-assign]


def test_ctrl_c_keeps_the_text_so_far_and_its_summary(fake: FakeSession, capsys):
    """The end of the text was held back, because a stop string may have begun there."""
    interrupt_after_the_first_word(fake)
    assert entry.main(["generate", "-p", "hi", "--temp", "1", "--seed", "5"]) == 130
    out, err = capsys.readouterr()
    assert out == "one tw"
    assert "2 tokens in" in err and "ended by cancelled" in err and "seed: 5" in err
    assert err.endswith("edgespec: error: interrupted\n")
    assert fake.is_closed


def test_ctrl_c_keeps_the_json_too(fake: FakeSession, capsys):
    interrupt_after_the_first_word(fake)
    assert entry.main(["generate", "-p", "hi", "--json", "--seed", "5"]) == 130
    report = json.loads(capsys.readouterr().out)
    assert (report["text"], report["finish_reason"], report["seed"]) == ("one tw", "cancelled", 5)


INTERRUPTED_IMPORT = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
sys.argv = ["edgespec", "generate", "-p", "hi"]
from edgespec.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("name", ["edgespec.cli", "argparse", "pydantic", "numpy", "llama_cpp"])
def test_ctrl_c_during_an_import_is_one_line(name: str):
    code = INTERRUPTED_IMPORT.format(name=name)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (130, b"edgespec: error: interrupted\n")


def test_ctrl_c_in_generated_code_is_no_death_by_the_signal(tmp_path: Path):
    """CPython remembers it from where it goes through `exec`, as in making a named tuple."""
    (tmp_path / "interrupted.py").write_text(
        "import sys; from edgespec.cli import entry\n"
        "def interrupted(given, interrupts): exec('raise KeyboardInterrupt')\n"
        "entry.run_generate = interrupted\n"
        "sys.argv = ['edgespec', 'generate', '-p', 'hi']\n"
        "from edgespec.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-m", "interrupted"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert (run.returncode, run.stderr) == (130, b"edgespec: error: interrupted\n")


def test_nothing_is_imported_before_ctrl_c_is_minded():
    """What is imported by then can only end in a traceback."""
    code = (
        "import sys; before = set(sys.modules); import edgespec.__main__;"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert set(run.stdout.split()) <= {"__future__", "edgespec", "edgespec.__main__"}


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
        fake.cancelled.wait(10)

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
        ("plan --disk-bandwidth fast", "--disk-bandwidth fast: write bytes a second like 300M"),
        ("models", "COMMAND"),
        ("models enlarge embedded out.gguf", "--size"),
        ("demo -n -7", "--n-predict -7"),
        ("demo --size -1", "--size -1: '-1' is not a size"),
        ("-v", "unknown flag -v: --version shows the version"),
        ("generate -p hi --mem 1G", "unknown flag --mem; did you mean '--memory-budget'?"),
        ("generate -p hi -m https://hub.example/x.gguf", "is an address: download the file"),
        ("generate -p hi -m org/name", "a repository of Hugging Face is fetched with -hf org/name"),
        ("generate -p hi -m org/name:Q4_K_M", "models pull org/name:Q4_K_M"),
        ("generate -p hi --logit-bias 7", "write a token's id and its bias like 15043+1.5"),
        ("generate -p hi --trace .", "it is a folder: name a file in it"),
        ("generate -f /dev/zero", "--file /dev/zero: it holds more than 64 MiB"),
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


def test_a_closed_stdin_is_no_prompt(fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert entry.main(["generate"]) == 2
    assert "there is no prompt" in capsys.readouterr().err


def test_a_prompt_that_no_context_holds_is_not_read_to_its_end(
    fake: FakeSession, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(invocation, "MOST_PROMPT_BYTES", 1 << 20)
    pipe_in(monkeypatch, bytes(2 << 20))
    assert entry.main(["generate"]) == 2
    assert "stdin: it holds more than 1 MiB" in capsys.readouterr().err


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


def test_a_bandwidth_means_the_same_in_plan_and_in_bench(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(session, "plan", lambda *args: PLAN)
    assert entry.main(["plan", "--disk-bandwidth", "300M", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["disk_bytes_per_s"] == 300_000_000
    assert BenchSettings(disk_bandwidth="300M").disk_bandwidth == 300_000_000  # type: ignore[arg-type]


def test_a_budget_that_large_trees_break_says_so(monkeypatch: pytest.MonkeyPatch, capsys):
    refuse_to_load(monkeypatch, BudgetError("too small; lower --ctx-size", 77))
    for command in ("plan --draft-max 500", "generate -p hi --draft-max 500"):
        assert entry.main(command.split()) == 4
        said = "lower --ctx-size, or --draft-max: buffers hold 500 nodes, usually 48"
        assert said in capsys.readouterr().err


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


def wait_for_text(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.read(1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_generation_with_what_there_is(number: signal.Signals):
    pytest.importorskip("llama_cpp")
    command = [sys.executable, "-m", "edgespec", "generate", "-p", "def gcd(a, b):", "-n", "-1"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # a test run in the background ignores Ctrl-C, and its children would too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        text = wait_for_text(process)
        process.send_signal(number)
        rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert text + rest
    lines = err.decode().splitlines()
    assert lines[-1] == "edgespec: error: interrupted"
    assert any(line.endswith("ended by cancelled") for line in lines)
