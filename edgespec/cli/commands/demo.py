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

from edgespec import runtimes
from edgespec.cli import fetching
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.interrupts import Interrupts
from edgespec.concurrency.exit_codes import exit_message
from edgespec.concurrency.interpreter import python
from edgespec.errors import EdgespecError
from edgespec.files import cache_folder
from edgespec.models import packaged
from edgespec.models.enlarging import enlarge
from edgespec.settings.config import GenerateSettings
from edgespec.settings.units import format_rate, format_size, parse_size

SIZE = "512MiB"
REAL_MODEL = "qwen2.5-coder"
TOKENS = 40


def add_to(parser: ArgumentParser) -> None:
    parser.description = (
        "Complete a Python function with a model about twice as large as its memory budget,\n"
        "first alone, then with a draft. The model comes with edgespec and is enlarged once, to a\n"
        "file in the cache folder: it writes the same text, at the cost of its new size."
    )
    groups.flag(
        parser,
        "--pair NAME",
        "embedded, or a real model that is downloaded once: smollm2, qwen2.5-coder (default: "
        "embedded)",
    )
    groups.flag(parser, "--size SIZE", f"size of the enlarged model (default: {SIZE})")
    groups.flag(parser, "-n --n-predict N", f"tokens (default: {TOKENS})", dest="max_tokens")


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
    """Parse the flags and run the demonstration."""
    n_tokens = getattr(args, "max_tokens", TOKENS)
    settings = groups.given(args, GenerateSettings, max_tokens=n_tokens)
    size = getattr(args, "size", SIZE)
    console = Console()
    pair = fetching.pair_named(getattr(args, "pair", fetching.EMBEDDED), console)
    demonstrate(pair, parse_size(size, named=f"--size {size}"), settings.max_tokens, console)
    return 0


def demonstrate(
    pair: fetching.NamedPair, size_bytes: int, max_tokens: int, console: Console
) -> None:
    """Enlarge the target if needed, plan, complete PROMPT alone and with guesses, and compare."""
    target, draft = enlarged(pair, size_bytes, console)
    target_bytes = target.stat().st_size
    guesses = ("-md", draft) if draft else ("--lookup",)
    models = ("-m", target, *guesses, "-c", CTX_SIZE, "--no-tuned")
    plan = json.loads(command("plan", *models, "--json", stdout=subprocess.PIPE))
    budget_bytes = plan["smallest_bytes"] + int(WEIGHTS_SHARE * target_bytes)
    console.write(
        f"target: {target}, {format_size(target_bytes)}\n"
        f"memory budget of the whole process: {format_size(budget_bytes)}\n"
    )
    budget, slow = ("--memory-budget", budget_bytes), ("--read-limit", READ_LIMIT)
    command("plan", *models, *budget, *slow)
    shared = (*budget, "-p", PROMPT, "-n", max_tokens)
    rate, source = format_rate(READ_LIMIT), "the draft" if draft else "guesses from the text itself"
    console.write(f"\n--- the target alone, as from a SATA disk, {rate}\n" + PROMPT.rstrip("\n"))
    unaided = ("-m", target, "-c", CTX_SIZE, "--no-tuned", "--no-draft", *shared)
    alone = _generated(*unaided, *slow)
    console.write(f"\n--- with {source}, the same disk\n" + PROMPT.rstrip("\n"))
    drafted = _generated(*models, *shared, *slow)
    own_alone, own = (_generated(*w, quiet=True) for w in (unaided, (*models, *shared)))
    console.write(f"\nAs from a SATA disk, {rate}: {comparison(alone, drafted, source)}")
    console.write(f"This machine's own disk: {comparison(own_alone, own, source)}")
    if pair.name == fetching.EMBEDDED:
        console.write(_next_step())


def _next_step() -> str:
    """A line with the command that shows the same with a real model."""
    model = packaged.models()[REAL_MODEL]
    fetched = packaged.cache_path(REAL_MODEL).exists()
    cost = "which is here" if fetched else f"a download of {model.size_bytes / 1e9:.1f} GB, once"
    return (
        f"\nThese models are toys. With {model.title}, {cost}:\n"
        f"    edgespec chat -m {REAL_MODEL} --memory-budget 800MiB"
    )


def enlarged(
    pair: fetching.NamedPair, size_bytes: int, console: Console
) -> tuple[Path, Path | None]:
    """The enlarged target in the cache folder, created on first use, and its draft, unless that is
    a head, which reads the states of the smaller model.

    A target that is already large enough is used unchanged.
    """
    if pair.target.stat().st_size >= size_bytes:
        return pair.target, pair.draft
    out = cache_folder.enlarged_target(pair.target_sha256, size_bytes, pair.name)
    cache_folder.make_folder()
    if not out.exists():
        console.note(f"enlarging the {pair.name} target to {format_size(size_bytes)}, once: {out}")
        enlarge(pair.target, out, size_bytes, console.progress)
        console.end_of_progress()
    is_whole = pair.draft is not None and runtimes.describe(pair.draft).head is None
    return out, pair.draft if is_whole else None


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
        raise EdgespecError(exit_message(f"running `edgespec {words[0]}`", done.returncode))
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


def comparison(alone: dict[str, Any], drafted: dict[str, Any], source: str = "the draft") -> str:
    """One line that compares two reports of `generate`; `source` guessed in the second."""
    slow, fast = (report["timings"]["tokens_per_s"] for report in (alone, drafted))
    same = alone["tokens"] == drafted["tokens"]
    verdict = (
        "the same text"
        if same
        else "the texts differ where two tokens were almost equally probable"
    )
    return (
        f"{slow:.1f} tokens/s alone, {fast:.1f} with {source}: {fast / slow:.1f} times as fast; "
        f"{verdict}"
    )
