"""Whether llama.cpp's CPU code works on this machine: tried once, in a process of its own.

Owns the question and what follows from the answer. It loads no library of llama.cpp's: where one
would end a process, this one goes on.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from edgespec.concurrency.endings import crash_name
from edgespec.errors import EdgespecError
from edgespec_runtimes.gguf.llama import kept_answers, own_process, product_trial

TIMEOUT_S = 30.0
"""A trial takes a tenth of a second; a machine that is busy may take longer."""


class Outcome(Enum):
    """What a trial showed."""

    WORKS = "works"
    PACKING_FAILS = "packing fails"
    """Products with packed weights crash or are wrong; plain ones are right."""
    ILLEGAL = "illegal instruction"
    """The library was built for another processor."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Trial:
    """What is known of a library, and why: a few words for a sentence."""

    outcome: Outcome
    why: str = ""


@dataclass(frozen=True, slots=True)
class Library:
    """The files of llama.cpp that compute, and the version that they are said to be."""

    version: str
    base: Path
    cpu: Path

    def key(self) -> str:
        """Differs for another build, processor or kernel."""
        files = kept_answers.state_of(self.files)
        known = [self.version, files, [*kept_answers.processor()], platform.release()]
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:24]

    @property
    def files(self) -> tuple[Path, Path]:
        return self.base, self.cpu


@dataclass(frozen=True, slots=True)
class Packing:
    """Whether weights that stay in memory go into buffers in which llama.cpp packs them anew."""

    allowed: bool
    found: str = ""
    """What stands in the way, where something does."""
    advice: str = ""

    @property
    def note(self) -> str | None:
        """A sentence for people where it is not as usual."""
        if self.allowed:
            return None
        return (
            f"{self.found}: weights that stay in memory are not packed and compute more slowly; "
            f"{self.advice}"
        )


def decide(system_info: str, trial: Trial, version: str) -> Packing:
    """What to do about packing, given what `llama_print_system_info` says and a trial showed.

    Where nothing is known packing is allowed, but for AMX: GCC drops the stores of llama.cpp's tile
    configuration, and the first product of several rows ends the process (llama.cpp #20824).
    """
    uses_amx = "AMX_INT8 = 1" in system_info
    if trial.outcome is Outcome.WORKS or (trial.outcome is Outcome.UNKNOWN and not uses_amx):
        return Packing(allowed=True)
    code = "llama.cpp's AMX code" if uses_amx else "llama.cpp's code for packed weights"
    if trial.outcome is Outcome.UNKNOWN:
        found = f"whether {code} works here could not be tried ({trial.why})"
    else:
        found = f"{code} fails on this machine ({trial.why} in a process of its own)"
    if uses_amx:
        return Packing(False, found, f"build it without AMX: {_rebuild(version, _NO_AMX)}")
    return Packing(False, found, f"build it again: {_rebuild(version)}")


def check(trial: Trial, version: str) -> None:
    """Raises EdgespecError for a library that would end this process, too."""
    if trial.outcome is Outcome.ILLEGAL:
        raise EdgespecError(
            f"llama.cpp was built for another processor (a trial ended with {trial.why}): build "
            f"it here: {_rebuild(version)}"
        )


def _rebuild(version: str, flags: str = "") -> str:
    """The command. pip's cache of wheels does not look at flags."""
    environment = f"CFLAGS='{flags}' CXXFLAGS='{flags}' " if flags else ""
    return (
        f"{environment}pip install --no-cache-dir --force-reinstall --no-deps "
        f"llama-cpp-python=={version}"
    )


_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def trial_of(library: Library) -> Trial:
    """What is remembered of this library on this machine, or what a trial shows now."""
    try:
        key = library.key()
    except OSError as error:
        return Trial(Outcome.UNKNOWN, str(error))
    place = kept_answers.place(key)
    remembered = _read(place) if place else None
    if remembered:
        return remembered
    script = Path(product_trial.__file__)
    if obstacle := _obstacle(script):
        return Trial(Outcome.UNKNOWN, obstacle)
    # isolated and without site-packages: it starts fast, and nothing of the application's runs
    command = [sys.executable, "-I", "-S", str(script), *map(str, library.files)]
    trial = attempt(command)
    if place and trial.outcome is not Outcome.UNKNOWN:
        kept_answers.write(place, {"outcome": trial.outcome.value, "why": trial.why})
    return trial


def attempt(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> Trial:
    """Run `product_trial`, or what stands for it. Whatever happens, it is gone afterwards."""
    try:
        done = own_process.run(command, timeout_s)
    except own_process.NoAnswer as error:
        return Trial(Outcome.UNKNOWN, str(error))
    # What was said counts, not the exit code alone: an application that ignores SIGCHLD gets 0.
    said, crash = done.stdout, crash_name(done.returncode)
    if said == product_trial.PLAIN + product_trial.PACKED:
        return Trial(Outcome.WORKS)
    if said == product_trial.PLAIN and crash:
        return Trial(Outcome.PACKING_FAILS, crash)
    if said == product_trial.PLAIN and done.returncode == product_trial.WRONG:
        return Trial(Outcome.PACKING_FAILS, "wrong numbers")
    if not said and crash == "SIGILL":
        return Trial(Outcome.ILLEGAL, crash)
    return Trial(Outcome.UNKNOWN, f"it ended with {crash or f'exit code {done.returncode}'}")


def _obstacle(script: Path) -> str | None:
    """Why it cannot be tried."""
    if missing := own_process.missing_interpreter():
        return missing
    return None if script.is_file() else f"{script} is no file"


def _read(place: Path) -> Trial | None:
    """None for what is not there or damaged."""
    kept = kept_answers.read(place)
    with suppress(ValueError, KeyError, TypeError):
        return Trial(Outcome(kept["outcome"]), str(kept["why"]))
    return None
