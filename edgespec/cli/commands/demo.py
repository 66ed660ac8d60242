"""`edgespec demo`: a model that does not fit its memory budget answers, first alone, then drafted.

Each step is a process of its own, so that it plans and measures its own memory alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, cast

from edgespec.cli.commands import reports
from edgespec.cli.console import Console, follow
from edgespec.cli.flags import parser
from edgespec.cli.interrupts import Interrupts
from edgespec.concurrency.endings import died
from edgespec.errors import EdgespecError
from edgespec.files import cache_folder
from edgespec.memory import process
from edgespec.memory.budget import MemoryPlan
from edgespec.models.embedded import EmbeddedPair, embedded_pair
from edgespec.models.enlarging import enlarge
from edgespec.session import session
from edgespec.settings.config import GenerateSettings, LoadSettings
from edgespec.settings.units import format_size, parse_size
from edgespec.values import GenerationResult, TokenEvent

PROMPT = '''\
def count_words(text):
    """Return a dictionary that maps each word of text to its count."""
    counts = {}
    for word in text.split():
'''
WEIGHTS_SHARE = 0.45
"""Share of the target's file that stays in memory beside the smallest ring: with it, about half of
the weights."""
CTX_SIZE = 512

Send = Callable[[object], None]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DemoRun:
    """Result of one run, sent by its process."""

    result: GenerationResult
    plan: MemoryPlan
    load_report: dict[str, float]
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class _Done:
    """The last message of a process: the value of its task."""

    value: object


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Parse the flags and run the demonstration. Raises what a command raises."""
    settings = GenerateSettings.model_validate(
        {"max_tokens": getattr(args, "max_tokens", parser.DEMO_TOKENS)}
    )
    size = getattr(args, "size", parser.DEMO_SIZE)
    demonstrate(parse_size(size, named=f"--size {size}"), settings.limit, Console())
    return 0


def demonstrate(size_bytes: int, max_tokens: int | None, console: Console) -> None:
    """Enlarge if need be, plan, complete PROMPT twice, compare. Raises what a command raises."""
    pair = embedded_pair()
    target = enlarged(pair, size_bytes, console)
    target_bytes = target.stat().st_size
    paired = LoadSettings(model=target, draft=pair.draft, ctx_size=CTX_SIZE)
    smallest_bytes = _apart("planning", _plan, (paired,), console).smallest_bytes
    budget_bytes = smallest_bytes + int(WEIGHTS_SHARE * target_bytes)
    paired = paired.model_copy(update={"memory_budget": budget_bytes})
    console.write(
        f"target: {target}, {format_size(target_bytes)}\n"
        f"memory budget of the whole process: {format_size(budget_bytes)}\n"
    )
    plan = _apart("planning", _plan, (paired,), console)
    console.write("\n".join(reports.plan_table(plan)) + "\n")

    console.write("--- the target alone")
    alone = _shown(paired.model_copy(update={"draft": None}), max_tokens, console)
    console.write("\n--- with the draft" + (" (green: guessed by it)" if console.color else ""))
    drafted = _shown(paired, max_tokens, console)
    _compare(alone, drafted, console)


def enlarged(pair: EmbeddedPair, size_bytes: int, console: Console) -> Path:
    """The enlarged target in the cache folder, made when it is first asked for."""
    out = cache_folder.enlarged_target(pair.target_sha256, size_bytes)
    cache_folder.make_folder()
    if not out.exists():
        console.note(f"enlarging the embedded target to {format_size(size_bytes)}, once: {out}")
        enlarge(pair.target, out, size_bytes, console.progress)
        console.end_of_progress()
    return out


def _shown(settings: LoadSettings, max_tokens: int | None, console: Console) -> DemoRun:
    """Complete PROMPT and print the text as it comes."""
    console.write(PROMPT.rstrip("\n"))
    outcome = _apart("loading", _complete, (settings, max_tokens), console)
    console.end_of_text()
    for line in reports.generation_summary(
        outcome.result, outcome.plan, outcome.load_report, outcome.peak_bytes
    ):
        console.write(f"  {line}")
    return outcome


def _plan(send: Send, settings: LoadSettings) -> MemoryPlan:
    return session.plan(settings)


def _complete(send: Send, settings: LoadSettings, max_tokens: int | None) -> DemoRun:
    def progress(what: str, share: float) -> None:
        send((what, share))

    with session.load(settings, progress=progress) as running:
        events = running.stream(PROMPT, max_tokens=max_tokens, progress=progress)
        result = follow(events, send)
        return DemoRun(result, running.plan, running.load_report, process.peak_rss_bytes())


def _apart(doing: str, task: Callable[..., T], args: tuple[Any, ...], console: Console) -> T:
    """Run `task` in a process of its own, show its events and progress, and return its value.

    `doing` is the first phase. If the process dies, the error names this phase or the last one
    that it reported.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, task, args), daemon=True)
    with _sigint_blocked():
        process.start()
    theirs.close()
    try:
        while True:
            match _received(ours):
                case TokenEvent() as event:
                    doing = "generating"
                    console.token(event)
                case (str(what), share):
                    doing = what
                    console.progress(what, share)
                case _Done(value):
                    console.end_of_progress()
                    return cast("T", value)
                case EdgespecError() as error:
                    raise error
                case None:
                    console.end_of_progress()
                    process.join()
                    raise EdgespecError(died(doing, process.exitcode))
    finally:
        process.terminate()
        process.join()
        ours.close()


def _received(connection: Connection) -> Any:
    """The next message; None if the other process is gone, even in the middle of a message."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


def _serve(connection: Connection, task: Callable[..., object], args: tuple[Any, ...]) -> None:
    """The other process's main function. Errors are sent; no traceback is printed."""
    try:
        connection.send(_Done(task(connection.send, *args)))
    except EdgespecError as error:
        connection.send(error)
    except Exception as error:  # noqa: BLE001 - the command line's promise: one line
        connection.send(EdgespecError(f"unexpected {type(error).__name__}: {error}"))


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in processes started in this context: their parent ends them on Ctrl-C."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _compare(alone: DemoRun, drafted: DemoRun, console: Console) -> None:
    slow, fast = alone.result.timings.tokens_per_s, drafted.result.timings.tokens_per_s
    same = alone.result.tokens == drafted.result.tokens
    verdict = "the same text" if same else "the texts part where two tokens were as good as equal"
    console.write(
        f"\n{slow:.1f} tokens/s alone, {fast:.1f} with the draft: {fast / slow:.1f} times as fast; "
        f"{verdict}"
    )
