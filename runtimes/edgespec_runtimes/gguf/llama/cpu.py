"""Tests whether llama.cpp's CPU code works on this machine, once, in a separate process.

Loads no llama.cpp library itself, because a wrong one crashes the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from edgespec.concurrency.exit_codes import crash_name
from edgespec.errors import EdgespecError
from edgespec_runtimes.gguf.llama import trial_process

PLAIN, PACKED = b"plain\n", b"packed\n"
"""Output of a trial after the products of that kind were right."""
WRONG = 3
"""Exit code of a trial with a wrong product; 1 is Python's, for unexpected errors."""

TIMEOUT_S = 30.0
"""Time limit of a trial, which takes a second on an idle machine."""


class TrialOutcome(Enum):
    """The outcomes of a trial."""

    WORKS = "works"
    PACKING_FAILS = "packing fails"
    """Products with packed weights crash or are wrong; unpacked ones are right."""
    ILLEGAL = "illegal instruction"
    """The library was built for another processor."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The outcome of a trial, and a short reason for messages."""

    outcome: TrialOutcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class LibraryFiles:
    """llama.cpp's library files, and their version."""

    version: str
    base: Path
    cpu: Path

    def key(self) -> str:
        """Cache key, which depends on build, processor and kernel."""
        files = trial_process.state_of((self.base, self.cpu))
        return trial_process.cache_key(self.version, files, [*trial_process.processor()])


@dataclass(frozen=True, slots=True)
class PackingDecision:
    """True in `allowed` if llama.cpp packs resident weights."""

    allowed: bool
    found: str = ""
    """Why packing is not allowed; empty if it is."""
    advice: str = ""

    @property
    def note(self) -> str | None:
        """A note for the user if weights are not packed."""
        if self.allowed:
            return None
        return (
            f"{self.found}: weights that stay in memory are not packed and compute more slowly; "
            f"{self.advice}"
        )


def decide_packing(system_info: str, trial: TrialResult, version: str) -> PackingDecision:
    """Decide about packing from `llama_print_system_info` and the result of a trial.

    Without a result, packing is allowed except with AMX: GCC drops the stores of llama.cpp's tile
    configuration, and the first product of several rows crashes (llama.cpp #20824).
    """
    uses_amx = "AMX_INT8 = 1" in system_info
    if trial.outcome is TrialOutcome.WORKS or (
        trial.outcome is TrialOutcome.UNKNOWN and not uses_amx
    ):
        return PackingDecision(allowed=True)
    code = "llama.cpp's AMX code" if uses_amx else "llama.cpp's code for packed weights"
    if trial.outcome is TrialOutcome.UNKNOWN:
        found = f"whether {code} works here could not be tried ({trial.why})"
    else:
        found = f"{code} fails on this machine ({trial.why} in a process of its own)"
    if uses_amx:
        return PackingDecision(False, found, f"build it without AMX: {_rebuild(version, _NO_AMX)}")
    return PackingDecision(False, found, f"build it again: {_rebuild(version)}")


def check_usable(trial: TrialResult, version: str) -> None:
    """Raise EdgespecError for a library that would crash this process."""
    if trial.outcome is TrialOutcome.ILLEGAL:
        raise EdgespecError(
            f"llama.cpp was built for another processor (a trial ended with {trial.why}): build "
            f"it here: {_rebuild(version)}"
        )


def _rebuild(version: str, flags: str = "") -> str:
    """The command that rebuilds llama.cpp, without pip's cache, which ignores build flags."""
    environment = f"CFLAGS='{flags}' CXXFLAGS='{flags}' " if flags else ""
    return (
        f"{environment}pip install --no-cache-dir --force-reinstall --no-deps "
        f"llama-cpp-python=={version}"
    )


_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def trial_result(library: LibraryFiles) -> TrialResult:
    """The cached result for this library on this machine, otherwise that of a new trial."""
    try:
        cache = trial_process.cached(library.key())
        if known := _known(cache.read()):
            return known
        trial = run_trial(trial_process.command("cpu"))
    except (OSError, trial_process.NoAnswer) as error:
        return TrialResult(TrialOutcome.UNKNOWN, str(error))
    if trial.outcome is not TrialOutcome.UNKNOWN:
        cache.write({"outcome": trial.outcome.value, "why": trial.why})
    return trial


def run_trial(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> TrialResult:
    """Run a trial; its process has always ended afterwards."""
    try:
        done = trial_process.run(command, timeout_s)
    except trial_process.NoAnswer as error:
        return TrialResult(TrialOutcome.UNKNOWN, str(error))
    # check the output, too: an application that ignores SIGCHLD gets the exit code 0
    output, crash = done.stdout, crash_name(done.returncode)
    if output == PLAIN + PACKED:
        return TrialResult(TrialOutcome.WORKS)
    if output == PLAIN and crash:
        return TrialResult(TrialOutcome.PACKING_FAILS, crash)
    if output == PLAIN and done.returncode == WRONG:
        return TrialResult(TrialOutcome.PACKING_FAILS, "wrong numbers")
    if not output and crash == "SIGILL":
        return TrialResult(TrialOutcome.ILLEGAL, crash)
    return TrialResult(TrialOutcome.UNKNOWN, trial_process.how_it_ended(done.returncode))


def _known(content: Any) -> TrialResult | None:
    """The result in a cache file; None if it is missing or damaged."""
    with suppress(ValueError, KeyError, TypeError):
        return TrialResult(TrialOutcome(content["outcome"]), str(content["why"]))
    return None
