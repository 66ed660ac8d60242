"""`edgespec demo`: runs a model larger than its memory budget, first alone, then with a draft.

Every step is an edgespec command in a process of its own, which measures its own memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from argparse import ArgumentParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from edgespec.cli.console import Console
from edgespec.cli.interrupts import Interrupts
from edgespec.concurrency.own_processes import exit_reason, python
from edgespec.errors import EdgespecError
from edgespec.files import cache_folder
from edgespec.models import packaged
from edgespec.models.embedded import embedded_pair
from edgespec.settings.units import format_rate, format_size
from edgespec.tools import enlarge

SIZE = 512 << 20
REAL_MODEL = "qwen2.5-coder"
TOKENS = 40


def add_to(parser: ArgumentParser) -> None:
    parser.description = (
        "Complete a Python function with a model about twice as large as its memory budget,\n"
        "first alone, then with a draft. The model comes with edgespec and is enlarged once, to a\n"
        "file in the cache folder: it writes the same text, at the cost of its new size."
    )


PROMPT = '''\
def count_words(text):
    """Return a dictionary that maps each word of text to its count."""
    counts = {}
    for word in text.split():
'''
READ_LIMIT = 500_000_000
"""Bytes per second of a SATA disk: both runs read at this rate, so that every machine shows the
same."""
WEIGHTS_SHARE = 0.45
"""Memory for weights beyond the smallest budget, as a share of the target's file; with the ring,
about half of the weights fit."""
CTX_SIZE = 512


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Enlarge the target if needed, plan, complete PROMPT alone and with guesses, and compare."""
    console = Console()
    target = enlarged(SIZE, console)
    models = ("-m", target, "-md", embedded_pair().draft, "-c", CTX_SIZE)
    plan = json.loads(command("plan", *models, "--json", stdout=subprocess.PIPE))
    target_bytes = target.stat().st_size
    budget_bytes = plan["smallest_bytes"] + int(WEIGHTS_SHARE * target_bytes)
    console.write(
        f"target: {target}, {format_size(target_bytes)}\n"
        f"memory budget of the whole process: {format_size(budget_bytes)}\n"
    )
    budget, slow = ("--memory-budget", budget_bytes), ("--read-limit", READ_LIMIT)
    command("plan", *models, *budget, *slow)
    shared = (*budget, "-p", PROMPT, "-n", TOKENS)
    rate = format_rate(READ_LIMIT)
    console.write(f"\n--- the target alone, as from a SATA disk, {rate}\n" + PROMPT.rstrip("\n"))
    unaided = ("-m", target, "-c", CTX_SIZE, "--no-draft", *shared)
    alone = _generated(*unaided, *slow)
    console.write("\n--- with the draft, the same disk\n" + PROMPT.rstrip("\n"))
    drafted = _generated(*models, *shared, *slow)
    own_alone, own = (_generated(*w, quiet=True) for w in (unaided, (*models, *shared)))
    console.write(f"\nAs from a SATA disk, {rate}: {comparison(alone, drafted)}")
    console.write(f"This machine's own disk: {comparison(own_alone, own)}")
    console.write(_next_step())
    return 0


def _next_step() -> str:
    """A line with the command that shows the same with a real model."""
    model = packaged.models()[REAL_MODEL]
    fetched = packaged.cache_path(REAL_MODEL).exists()
    cost = "which is here" if fetched else f"a download of {model.size_bytes / 1e9:.1f} GB, once"
    return (
        f"\nThese models are toys. With {model.title}, {cost}:\n"
        f"    edgespec chat -m {REAL_MODEL} --memory-budget 800MiB"
    )


def enlarged(size_bytes: int, console: Console) -> Path:
    """The enlarged embedded target in the cache folder, created on first use."""
    pair = embedded_pair()
    out = cache_folder.enlarged_target(pair.target_sha256, size_bytes)
    cache_folder.make_folder()
    if not out.exists():
        console.note(f"enlarging the embedded target to {format_size(size_bytes)}, once: {out}")
        enlarge(pair.target, out, size_bytes, console.progress)
        console.end_of_progress()
    return out


def command(*words: object, stdout: int | None = None) -> bytes:
    """Run an edgespec command and return its stdout if `stdout` is a pipe.

    The command itself reports a failure; its exit code is raised as SystemExit.
    """
    # in a session of its own, which Ctrl-C does not reach; `run` ends it
    done = subprocess.run(
        python("-m", "edgespec", *map(str, words)),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        start_new_session=True,
        check=False,
    )
    if done.returncode < 0:
        why = exit_reason(done.returncode)
        raise EdgespecError(f"the process ended while running `edgespec {words[0]}` ({why})")
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout or b""


def _generated(*words: object, quiet: bool = False) -> dict[str, Any]:
    """Run `edgespec generate` and return its report; `quiet`: shows nothing of it."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "report.json")
        stdout = subprocess.PIPE if quiet else None
        command("generate", *words, "--json", file, *["--quiet"] * quiet, stdout=stdout)
        report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return report


def comparison(alone: dict[str, Any], drafted: dict[str, Any]) -> str:
    """One line that compares two reports of `generate`, without and with the draft."""
    slow, fast = (report["timings"]["tokens_per_s"] for report in (alone, drafted))
    same = "the same text" if alone["tokens"] == drafted["tokens"] else "another text: a near tie"
    return (
        f"{slow:.1f} tokens/s alone, {fast:.1f} with the draft: {fast / slow:.1f} times as fast; "
        f"{same}"
    )
