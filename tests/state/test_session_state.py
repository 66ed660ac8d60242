"""State saved by one session is loaded by another, whose text continues as if computed there."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import edgespec
from commands_here import Done, run_here
from edgespec.errors import SessionClosed, StateError
from edgespec.models.embedded import embedded_pair
from edgespec.session.session import Session
from edgespec.settings.config import LoadSettings, SamplingParams
from test_end_to_end import MIB, big, smallest
from test_end_to_end import edgespec as edgespec_alone

__all__ = ["big", "smallest"]

PAIR = embedded_pair()
WARM = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=5)
PROMPT = "def f(x):\n    return x + 1\n" * 12
TURN = "\n\ndef g(y):\n" * 8


def load(**options: object) -> Session:
    settings: dict[str, object] = {"model": PAIR.target, "draft": PAIR.draft} | options
    return edgespec.load(LoadSettings(**settings))  # type: ignore[arg-type]


def turn(session: Session, tokens: list[int]) -> tuple[list[int], list[object]]:
    """Tokens and log probabilities of what follows."""
    with session.stream(tokens, WARM, 24, logprobs=5) as generation:
        events = list(generation)
    return [event.token for event in events], [event.logprobs for event in events]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[int], object]]:
    """The state after one turn, the next turn's prompt, and what follows it there and then."""
    path = tmp_path_factory.mktemp("state") / "a.state"
    with load() as session:
        tokens = [*session.encode(PROMPT), *session.generate(PROMPT, WARM, 24).tokens]
        assert session.save_state(path) == len(tokens) - 1
        tokens += session.encode(TURN)
        yield path, tokens, turn(session, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("draft", [PAIR.draft, None])
def test_the_next_turn_is_that_of_the_session_which_went_on(first, draft: Path | None) -> None:
    path, tokens, expected = first
    with load(draft=draft) as session:
        session.load_state(str(path))
        assert turn(session, tokens) == expected
        assert session.paging.passes == 0


def test_state_of_another_model_is_refused_and_the_session_goes_on(first) -> None:
    path, _, _ = first
    with load(model=PAIR.draft, draft=None) as session:
        text = session.generate("def f(", max_tokens=4).text
        with pytest.raises(StateError, match=r"of the model .*, not of|of other weights"):
            session.load_state(path)
        assert session.generate("def f(", max_tokens=4).text == text


@pytest.mark.slow
def test_state_of_another_context_is_refused(first) -> None:
    path, _, _ = first
    with load(ctx_size=256) as session, pytest.raises(StateError, match="--ctx-size"):
        session.load_state(path)


@pytest.mark.slow
@pytest.mark.parametrize("in_thread", [False, True], ids=["its own thread", "another thread"])
def test_state_waits_for_the_text_that_is_being_made(
    first, tmp_path: Path, in_thread: bool
) -> None:
    """A thread that waits for its own text does not wait for ever: the text is written first."""
    saved: list[int] = []

    def save() -> None:
        saved.append(session.save_state(tmp_path / "b.state"))

    with load() as session:
        generation = session.stream("def f(", max_tokens=8)
        next(generation)
        waiting = threading.Thread(target=save)
        if in_thread:
            waiting.start()
        else:
            save()
        n_tokens = len(list(generation)) + 1
        if in_thread:
            waiting.join()
        assert saved == [len(session.encode("def f(")) + n_tokens - 1]


def test_a_prompt_cache_is_read_beside_the_texts_of_others(first, tmp_path: Path) -> None:
    """Texts that were being written lost all they had read, and went on from nothing."""
    path, tokens, expected = first
    cache = edgespec.PromptCache(shutil.copy(path, tmp_path), read_only=True)
    with load(n_parallel=2) as session:
        alone = turn(session, tokens[:40])
        with session.stream(tokens[:40], WARM, 24, logprobs=5) as other:
            events = [next(other) for _ in range(6)]
            with session.stream(tokens, WARM, 24, logprobs=5, prompt_cache=cache) as generation:
                cached = list(generation)
            assert generation.result.reused_tokens == len(tokens) - len(session.encode(TURN)) - 1
            events += other
    assert ([e.token for e in events], [e.logprobs for e in events]) == alone
    assert ([e.token for e in cached], [e.logprobs for e in cached]) == expected


@pytest.mark.slow
def test_a_closed_session_keeps_nothing(tmp_path: Path) -> None:
    session = load()
    session.generate("def f(", max_tokens=2)
    session.close()
    with pytest.raises(SessionClosed):
        session.save_state(tmp_path / "b.state")


# The command line


def run(*arguments: object, code: int = 0) -> Done:
    done = run_here(*arguments)
    assert done.code == code, done.stderr
    return done


@pytest.mark.slow
def test_generate_reads_a_prompt_once(tmp_path: Path) -> None:
    path = tmp_path / "p.state"
    cached = ("generate", "-p", PROMPT, "-n", 12, "-b", 64, "--prompt-cache", path)
    first, second = (run(*cached, "--json").json for _ in range(2))
    assert second["text"] == first["text"]
    assert (first["reused_tokens"], first["saved_passes"]) == (0, 0)
    assert second["reused_tokens"] == len(second["prompt_tokens"]) - 1
    n_saved = (len(second["prompt_tokens"]) - 1) // 64
    assert second["saved_passes"] == n_saved > 1
    kept = f"{second['reused_tokens']} of them kept from before ({n_saved} passes saved)"
    assert kept in run(*cached).stderr


@pytest.mark.slow
def test_generate_keeps_the_text_too_where_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "p.state"
    cached = ("--prompt-cache", path, "--prompt-cache-all", "--json", "-n", 12)
    text = run("generate", "-p", PROMPT, *cached).json
    longer = run("generate", "-p", PROMPT + text["text"], *cached).json
    assert longer["reused_tokens"] > len(text["prompt_tokens"]) + 5


def test_a_cache_of_another_model_is_exit_code_3_and_stays(first) -> None:
    path, _, _ = first
    content = path.read_bytes()
    said = run("generate", "-m", PAIR.draft, "-p", "x", "--prompt-cache", path, code=3).stderr
    assert said.count("error:") == 1
    assert path.read_bytes() == content


def test_what_is_no_cache_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "diary.txt"
    path.write_text("dear diary")
    said = run("generate", "-m", "/nowhere.gguf", "-p", "x", "--prompt-cache", path, code=3).stderr
    assert "diary.txt is not a state file of this edgespec" in said
    assert path.read_text() == "dear diary"


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--prompt-cache-ro",), "--prompt-cache-ro needs --prompt-cache FILE"),
        (("--prompt-cache", ""), "--prompt-cache is empty"),
        (("--prompt-cache", "x", "--prompt-cache-ro", "--prompt-cache-all"), "contradicts"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused(flags: tuple[str, ...], complaint: str) -> None:
    assert complaint in run("generate", "-p", "x", *flags, code=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("--quiet",)])
def test_a_disk_that_is_full_costs_no_text(
    tmp_path: Path, flags: tuple[str, ...], small_files: None
) -> None:
    cached = ("--prompt-cache", tmp_path / "p.state")
    done = run("generate", "-p", PROMPT, "-n", 8, *cached, *flags, code=1)
    assert done.stdout.strip()
    assert done.stderr.count("p.state cannot be written: File too large") == 1
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_files() -> Iterator[None]:
    """A limit on the size of files, which stands for a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, heard)


@pytest.mark.slow
def test_the_peak_stays_within_the_budget_with_a_state_file(
    big: Path, smallest: int, tmp_path: Path
) -> None:
    path = tmp_path / "p.state"
    paged = ("generate", "-m", big, "-md", PAIR.draft, "-c", 256, "-p", PROMPT, "-n", 8)
    cached = ("--memory-budget", smallest, "--prompt-cache", path, "--prompt-cache-all", "--json")
    first, second = (edgespec_alone(*map(str, (*paged, *cached))).json for _ in range(2))
    for answer in (first, second):
        assert answer["memory"]["peak_bytes"] <= answer["memory"]["budget_bytes"]
    assert path.stat().st_size > MIB
    assert second["text"] == first["text"]
    assert first["saved_passes"] == 0 < second["saved_passes"]  # rounds depend on the machine
