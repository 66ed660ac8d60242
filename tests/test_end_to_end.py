"""The command as a user runs it: memory and Ctrl-C in a process of its own, text and bad input."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from commands_here import Done, run_here
from edgespec.models.embedded import embedded_pair, preset_names
from edgespec_runtimes.enlarge.gguf.enlarge import enlarge
from gguf_files import tiny_llama

PAIR = embedded_pair()
MIB = 1 << 20
PROMPT = "def count_words(text):\n    "
TIMEOUT_S = 120


ANNOUNCED = """
import sys
from edgespec.__main__ import main

class Announced:
    def find_spec(self, name, *_):
        if name == "edgespec.cli":
            print(flush=True)

sys.meta_path.insert(0, Announced())
sys.exit(main())
"""
"""The command, telling when it has begun: Python's own start ends by itself, with a traceback."""


def edgespec(*arguments: str | Path, signal_after_s: float | None = None) -> Done:
    """Run the command line; Ctrl-C so many seconds after it began, as its first import tells."""
    start = ["-m", "edgespec"] if signal_after_s is None else ["-c", ANNOUNCED]
    process = subprocess.Popen(
        [sys.executable, *start, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a test run in the background ignores Ctrl-C, and its children would too
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    if signal_after_s is not None:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(signal_after_s)
        process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=TIMEOUT_S)
    return Done(process.returncode, stdout, stderr)


def of_text(*arguments: str | Path, n: int = 24) -> tuple[str | Path, ...]:
    fixed = ("-p", PROMPT, "-n", str(n), "-c", "256", "-t", "1", "--json", "--quiet")
    return ("generate", *fixed, *arguments)


def generate(*arguments: str | Path, n: int = 24) -> Done:
    return edgespec(*of_text(*arguments, n=n))


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of 18 MiB that writes what the embedded one writes."""
    path = tmp_path_factory.mktemp("models") / "big.gguf"
    enlarge(PAIR.target, path, 18 * MIB)
    return path


@pytest.fixture(scope="module")
def smallest(big: Path) -> int:
    """The smallest budget for the pair in a process of its own."""
    return int(edgespec(*of_plan(big)).json["smallest_bytes"])


@pytest.fixture(scope="module")
def smallest_here(big: Path) -> int:
    """The smallest budget for the pair in this process."""
    return int(run_here(*of_plan(big)).json["smallest_bytes"])


def of_plan(big: Path) -> tuple[str | Path, ...]:
    return ("plan", "-m", big, "-md", PAIR.draft, "-c", "256", "--json")


@pytest.mark.slow
def test_the_smallest_budget_that_is_named_always_works(big: Path) -> None:
    """It does not depend on the budget; processes differ by a step in what they take."""
    pair = ("-m", big, "-md", PAIR.draft)

    def smallest_at(budget: int) -> int:
        done = edgespec("plan", *pair, "-c", "256", "--json", "--memory-budget", str(budget))
        return int(done.json.get("error", done.json)["smallest_bytes"])

    all_named = {smallest_at(budget * MIB) for budget in (50, 100, 120, 135, 150, 300)}
    named = min(all_named)
    assert max(all_named) - named <= 2 * MIB
    for _ in range(3):
        answer = generate(*pair, "--memory-budget", str(named), n=2)
        assert answer.code == 0
        assert answer.json["memory"]["peak_bytes"] <= named


def test_a_pass_reads_what_is_not_pinned(big: Path, smallest_here: int) -> None:
    budget = smallest_here + MIB // 2
    of_budget = ("-m", big, "--memory-budget", str(budget), "--batch-size", "128")
    answer = run_here(*of_text(*of_budget, n=48)).json  # no memory goes to a prompt and back
    paging = answer["paging"]
    assert paging["pinned_bytes"] > 0
    # the last reading ahead serves no pass; a ring is a small part of 48 passes
    per_pass = paging["bytes_read"] / paging["passes"]
    assert per_pass == pytest.approx(paging["streamed_bytes"], rel=0.03)


def assert_refused(done: Done, code: int, *words: str) -> None:
    assert done.code == code, (done.code, done.stderr)
    assert "Traceback" not in done.stderr
    messages = [line for line in done.stderr.splitlines() if line.startswith("edgespec: error:")]
    assert len(messages) == 1, done.stderr
    for word in words:
        assert word in done.stderr


def refused(*arguments: str | Path) -> Done:
    return run_here("generate", "-p", PROMPT, "-n", "4", *arguments)


def test_a_budget_below_the_minimum_names_the_smallest(big: Path) -> None:
    assert_refused(refused("-m", big, "--memory-budget", "50M"), 4, "at least", "--memory-budget")


def test_a_context_too_long_for_the_budget_is_refused(big: Path, smallest_here: int) -> None:
    done = refused(
        "-m", big, "--memory-budget", str(smallest_here), "-c", "1024", "-md", PAIR.draft
    )
    assert_refused(done, 4, "--ctx-size")


def test_a_truncated_model_is_refused(big: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    shutil.copy(PAIR.target, cut)
    os.truncate(cut, cut.stat().st_size // 2)
    assert_refused(refused("-m", cut), 3, "cut.gguf")


def test_other_kinds_of_file_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.gguf"
    text.write_text("not a model")
    assert_refused(refused("-m", text), 3, "notes.gguf")
    assert_refused(refused("-m", tmp_path), 3)
    assert_refused(refused("-m", tmp_path / "missing.gguf"), 3, "does not exist")


def test_a_pair_with_different_vocabularies_is_refused(tmp_path: Path) -> None:
    stranger = tmp_path / "stranger.gguf"
    stranger.write_bytes(tiny_llama().content())
    assert_refused(refused("-m", PAIR.target, "-md", stranger), 3, "vocabular", "family")


def test_a_prompt_longer_than_the_context_is_refused() -> None:
    done = run_here("generate", "-p", "word " * 500, "-c", "64")
    assert_refused(done, 2, "64")


@pytest.mark.slow
def test_a_file_cut_short_while_it_is_streamed_is_an_error(big: Path, smallest: int) -> None:
    """The file shrinks after it was loaded; the process is not killed by SIGBUS."""
    copy = big.with_name("shrinking.gguf")
    shutil.copy(big, copy)
    process = subprocess.Popen(
        [
            sys.executable, "-m", "edgespec", "generate", "-m", str(copy), "-p", PROMPT,
            "-c", "1024", "-n", "900", "-t", "1", "--memory-budget", str(smallest + 9 * MIB),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.read(1)
    os.truncate(copy, 6 * MIB)
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1, stderr
    assert "cut short" in stderr
    assert "Traceback" not in stderr


@pytest.mark.costly
@pytest.mark.parametrize("delay_s", [0.1, 0.5, 1.5])
def test_ctrl_c_ends_quickly_whatever_is_going_on(big: Path, smallest: int, delay_s: float) -> None:
    """Start-up, loading, prefill, passes: exit code 130, and no process is left."""
    arguments: Sequence[str | Path] = (
        "generate", "-m", big, "-md", PAIR.draft, "-p", PROMPT * 20, "-n", "700",
        "-c", "1024", "-t", "1", "--memory-budget", str(smallest + 15 * MIB),
    )  # fmt: skip
    begun = time.monotonic()
    done = edgespec(*arguments, signal_after_s=delay_s)
    assert done.code == 130, (done.code, done.stderr)
    assert "Traceback" not in done.stderr
    assert time.monotonic() - begun < delay_s + 20


@pytest.mark.parametrize("preset", preset_names())
def test_every_preset_suits_the_embedded_pair(preset: str) -> None:
    """They asked for more context than small models have, and were refused."""
    done = run_here("plan", "--config", preset, "--json")
    assert done.code == 0, done.stderr
