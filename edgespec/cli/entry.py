"""The command line: runs a command, and turns whatever ends it into one line and an exit code.

The only part of edgespec that prints and that listens to signals. The library behind a command is
imported when the command runs, so that `--help` needs no model library.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import secrets
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.cli import flags, grammars, prompt_caches, reports
from edgespec.cli.console import CLEAR_REST, Console, follow
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import Request, engine_settings, read_prompt, settings_from
from edgespec.cli.terminal import printable_on
from edgespec.errors import BudgetError, Cancelled, EdgespecError, UsageError
from edgespec.settings.config import GenerateSettings
from edgespec.settings.units import parse_rate, parse_size
from edgespec.tracing.spans import OFF, Trace
from edgespec.values import GenerationResult, TokenEvent

if TYPE_CHECKING:
    from edgespec.session.session import Session

INTERRUPTED = Cancelled.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run `argv` (default: the process's own) and return the exit code."""
    is_whole_process = argv is None
    arguments = sys.argv[1:] if argv is None else list(argv)
    interrupts = Interrupts()
    with interrupts.heard(until_the_end=is_whole_process):
        try:
            exit_code = _run(arguments, interrupts)
            return exit_code if _can_flush() else exit_code or 1
        except KeyboardInterrupt:  # while the last words were written
            return INTERRUPTED


def _run(arguments: Sequence[str], interrupts: Interrupts) -> int:
    wants_json = "--json" in arguments
    try:
        _prepare_streams()
        if not arguments:
            Console().write(flags.GREETING)
        given = flags.parse(arguments)
        if given.command == "generate":
            return run_generate(given, interrupts)
        if given.command in _LASTING:
            return _LASTING[given.command](given, interrupts)
        _COMMANDS[given.command](given)
        return 0
    except SystemExit as end:  # argparse, after --help and --version
        return int(end.code or 0)
    except BrokenPipeError:  # whoever read the text has seen enough
        return 1
    except (KeyboardInterrupt, Cancelled) as error:
        return _fail(error, "interrupted", INTERRUPTED, wants_json)
    except (EdgespecError, OSError) as error:
        return _fail(error, str(error), getattr(error, "exit_code", 1), wants_json)
    except Exception as error:  # noqa: BLE001 - the promise: one line, never a traceback
        message = f"unexpected {type(error).__name__}: {error} (EDGESPEC_DEBUG=1 shows where)"
        return _fail(error, message, 1, wants_json)


def run_generate(given: argparse.Namespace, interrupts: Interrupts) -> int:
    """`edgespec generate`. Ctrl-C ends the text; what there is of it is reported all the same."""
    from edgespec.memory import process
    from edgespec.session import session

    grammar, cache = grammars.grammar_from(given), prompt_caches.cache_from(given)
    request, prompt = settings_from(given), read_prompt(given)
    settings = request.generate
    as_json = "json" in given
    console = Console(color=_color(given, as_json), quiet="quiet" in given)
    for note in request.notes:
        console.note(note)
    seed = secrets.randbits(32) if settings.seed is None else settings.seed
    with (
        _telling_of_draft_max(request),
        _trace(given) as trace,
        session.load(request.load, engine_settings(settings), console.progress, trace) as running,
    ):
        events = running.stream(
            prompt,
            settings.sampling(seed),
            settings.limit,
            settings.stop,
            console.progress,
            grammar,
            prompt_cache=cache,
        )
        shown = _Shown(_ignore if as_json else console.token)
        with interrupts.stopping(running.cancel):
            result = follow(events, shown.show)
        shown.rest_of(result)
        trace.close()
        failure = cache.failure if cache else None
        if cache and "prompt_cache_all" in given:
            failure = _kept(running, cache.path) or failure
        peak_bytes = process.peak_rss_bytes()
        console.end_of_progress()
        if as_json:
            console.json(
                reports.generation_report(
                    result,
                    running.plan,
                    running.load_report,
                    peak_bytes,
                    seed=seed,
                    model=str(request.load.model),
                    draft=str(request.load.draft) if request.load.draft else None,
                    version=flags.installed_version(),
                )
            )
            return _outcome(result, failure)
        console.end_of_text()
        console.note("")
        for line in reports.generation_summary(
            result, running.plan, running.load_report, peak_bytes
        ):
            console.note(line)
        if settings.temperature > 0:
            console.note(f"seed: {seed}")
        if console.color and result.speculation.drafted:
            console.note("green: guessed by the draft")
        if "trace" in given:
            console.note(f"trace: {given.trace}: ui.perfetto.dev or chrome://tracing opens it")
        return _outcome(result, failure)


class _Shown:
    """Passes events on, and in the end the text that came with none: it was held back until it
    was sure that no stop string follows, and the text was interrupted then.
    """

    def __init__(self, show: Callable[[TokenEvent], None]) -> None:
        self._show = show
        self._length = 0

    def show(self, event: TokenEvent) -> None:
        self._length += len(event.text)
        self._show(event)

    def rest_of(self, result: GenerationResult) -> None:
        if result.finish_reason == "cancelled" and (rest := result.text[self._length :]):
            self._show(TokenEvent(rest, result.tokens[-1], "target", result.speculation.rounds))


def _kept(running: Session, path: Path) -> EdgespecError | None:
    """Keep all that was computed; why not, where that cannot be done."""
    try:
        running.save_state(path)
    except EdgespecError as error:
        return error
    return None


def _outcome(result: GenerationResult, failure: EdgespecError | None = None) -> int:
    """The exit code, and on stderr why it is not 0; `failure` came when the text was there."""
    if result.finish_reason != "cancelled":
        return _fail(failure, str(failure), failure.exit_code, wants_json=False) if failure else 0
    return _fail(Cancelled(), "interrupted", INTERRUPTED, wants_json=False)


def run_plan(given: argparse.Namespace) -> None:
    """`edgespec plan`."""
    from edgespec.paging import disk_speed
    from edgespec.session import session

    request = settings_from(given)
    bandwidth: float | None = None
    source = "measured just now"
    if "disk_bandwidth" in given:
        bandwidth, source = parse_rate(given.disk_bandwidth), "as given"
    console = Console()
    with _telling_of_draft_max(request):
        memory_plan = session.plan(
            request.load, engine_settings(request.generate), console.progress
        )
    console.end_of_progress()
    if bandwidth is None and memory_plan.paged:
        bandwidth = disk_speed.bytes_per_second(request.load.model)
    # Imported after planning, since modules take memory, too.
    from edgespec.tuning import kept

    predicted = kept.predicted(request.load, memory_plan, bandwidth)
    if "json" in given:
        console.json(reports.plan_report(memory_plan, bandwidth, predicted))
        return
    for note in request.notes:
        console.note(note)
    console.write("\n".join(reports.plan_table(memory_plan, bandwidth, source, predicted)))


def run_doctor(given: argparse.Namespace) -> None:
    """`edgespec doctor`."""
    from edgespec.cli import doctor

    doctor.run(given)


def run_demo(given: argparse.Namespace) -> None:
    """`edgespec demo`."""
    from edgespec.cli import demo

    settings = GenerateSettings.model_validate(
        {"max_tokens": getattr(given, "max_tokens", flags.DEMO_TOKENS)}
    )
    size = getattr(given, "size", flags.DEMO_SIZE)
    size_bytes = parse_size(size, named=f"--size {size}")
    demo.run(size_bytes, settings.limit, Console())


def run_bench(given: argparse.Namespace) -> None:
    """`edgespec bench`."""
    from edgespec.cli import bench

    bench.run(bench.request_from(given), Console())


def run_tune(given: argparse.Namespace) -> None:
    """`edgespec tune`."""
    from edgespec.cli import tune

    tune.run(given)


def run_models(given: argparse.Namespace) -> None:
    """`edgespec models ...`."""
    from edgespec.cli import model_commands

    model_commands.run(given)


def run_serve(given: argparse.Namespace, interrupts: Interrupts) -> int:
    """`edgespec serve`."""
    from edgespec.cli import serving

    serving.run_serve(given, interrupts)
    return 0


def run_chat(given: argparse.Namespace, interrupts: Interrupts) -> int:
    """`edgespec chat`."""
    from edgespec.cli import chatting

    return chatting.run_chat(given, interrupts)


_LASTING: dict[str, Callable[[argparse.Namespace, Interrupts], int]] = {
    "chat": run_chat,
    "serve": run_serve,
}
"""Commands that last until they are told to end, which is no failure."""


def run_completion(given: argparse.Namespace) -> None:
    """`edgespec completion`."""
    Console().write(flags.completion(given.shell))


_COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "completion": run_completion,
    "plan": run_plan,
    "doctor": run_doctor,
    "demo": run_demo,
    "bench": run_bench,
    "tune": run_tune,
    "models": run_models,
}


@contextmanager
def _telling_of_draft_max(request: Request) -> Iterator[None]:
    """A budget that does not hold is told what takes it, where that was asked for."""
    try:
        yield
    except BudgetError as error:
        n_nodes, usual = (
            request.generate.draft_max,
            type(request.generate).model_fields["draft_max"],
        )
        if request.load.draft is None or n_nodes <= usual.default:
            raise
        message = f"{error}, or --draft-max: buffers hold {n_nodes} nodes, usually {usual.default}"
        raise BudgetError(message, error.smallest_bytes) from error


def _trace(given: argparse.Namespace) -> Trace:
    if "trace" not in given:
        return OFF
    from edgespec.tracing.trace_file import open_trace

    return open_trace(given.trace)


def _ignore(event: TokenEvent) -> None:
    """With --json the text comes at the end."""


def _color(given: argparse.Namespace, as_json: bool) -> Any:
    if as_json and getattr(given, "color", "auto") == "always":
        raise UsageError("--color always cannot apply to --json: leave one of them out")
    return getattr(given, "color", "auto")


def _fail(error: BaseException, message: str, exit_code: int, wants_json: bool) -> int:
    """Say what went wrong, on stderr and with --json on stdout too."""
    if os.environ.get("EDGESPEC_DEBUG"):
        traceback.print_exception(error)
    details: dict[str, Any] = {
        "message": message,
        "type": type(error).__name__,
        "exit_code": exit_code,
    }
    if isinstance(error, BudgetError) and error.smallest_bytes is not None:
        details["smallest_bytes"] = error.smallest_bytes
    # Where nobody listens any more, the exit code still speaks.
    with suppress(OSError):
        if wants_json:
            print(json.dumps({"error": details}, ensure_ascii=False), flush=True)
    with suppress(OSError):
        rest_of_progress = CLEAR_REST if sys.stderr.isatty() else ""
        shown = printable_on(sys.stderr, message)
        print(f"edgespec: error: {shown}{rest_of_progress}", file=sys.stderr, flush=True)
    return exit_code


def _prepare_streams() -> None:
    """A character that cannot be shown becomes a question mark, a stream that is closed a sink."""
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - lives as long as we
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - likewise
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _can_flush() -> bool:
    """Flush; a stream that cannot be gets a sink, or the interpreter's flush at exit would fail."""
    all_went_out = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            all_went_out = False
    return all_went_out
