"""`edgespec batch`: answer a file of requests, with progress, and resume interrupted runs."""

from __future__ import annotations

import argparse
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.flags.checked_values import template_from
from edgespec.cli.interrupts import Interrupts
from edgespec.cli.invocation import server_settings, settings_from
from edgespec.cli.model_list import PARALLEL, for_requests
from edgespec.completions.request_limits import max_body_bytes
from edgespec.errors import EdgespecError, UsageError
from edgespec.files.line_log import LineLog
from edgespec.files.named_errors import named
from edgespec.files.regular import open_regular

if TYPE_CHECKING:
    from edgespec.batch.batch_run import BatchCounts


_DESCRIPTION = """\
Answer a file of requests, each a line in OpenAI's batch format:

  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
   "body": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 64}}

(on one line), or with the url /v1/completions and a body like {"prompt": "Once", "max_tokens": 64}.
Each answer is written to OUT as soon as it is complete, with the custom_id of its request:

  {"id": "batch_req_...", "custom_id": "a", "error": null,
   "response": {"status_code": 200, "request_id": "...", "body": {"choices": ...}}}"""

_EXAMPLES = """\
example:
  edgespec batch requests.jsonl answers.jsonl -m big.gguf -md small.gguf --memory-budget 4GiB

To resume a run that was interrupted, by Ctrl-C, kill -9 or a power cut, run the same command again:
requests with a line in OUT are skipped, and an incomplete last line is removed. A line that is not
a valid request, or that repeats a custom_id, gets a line with its error. A request at which the
model failed (status 500 or more) is tried again by the next run, and its last line counts. To
answer other requests again, delete their lines from OUT, or the whole file.

exit codes: 0 all were answered, 1 some have errors or the run failed, 130 interrupted"""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.add_argument("input", metavar="IN", help="file of requests; - is stdin")
    parser.add_argument("out", metavar="OUT", help="file of answers, which grows; - is stdout")
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_parallel(parser, PARALLEL)
    groups.add_texts(parser)
    groups.add_chat_template(parser)
    groups.flag(parser, "--quiet", "print no notes or progress")


STREAM = "-"


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Answer all requests. Ctrl-C ends the run and keeps finished answers."""
    from edgespec.batch.answered import earlier_answers, writer
    from edgespec.batch.batch_run import BatchRun, starting
    from edgespec.batch.lines import ENVELOPE_BYTES, numbered_lines
    from edgespec.completions.service import Completions

    template = template_from(args)
    body_bytes = server_settings(args).max_body or 0
    console = Console(quiet="quiet" in args)
    with ExitStack() as stack:
        requests, n_lines = _open_input(args.input, stack)
        log = stack.enter_context(_open_output(args.out, args.input))
        earlier = earlier_answers(log, args.out)
        settings = for_requests(settings_from(args, n_parallel=PARALLEL), body_bytes)
        loaded = stack.enter_context(settings.opened(console, template))
        body_bytes = body_bytes or max_body_bytes(loaded.target.n_ctx)
        # the server's defaults and limits
        completions = Completions(
            loaded,
            max_prompt_tokens=loaded.target.n_ctx,
            sampling=loaded.chat_sampling,
            serves=True,
        )

        def lines() -> Iterator[tuple[int, bytes | None]]:
            with named(f"IN {args.input} cannot be read", EdgespecError):
                yield from numbered_lines(requests, body_bytes + ENVELOPE_BYTES)

        write, n_texts = writer(log, args.out), loaded.n_parallel
        batch = BatchRun(starting(completions), lines(), write, loaded.cancel, earlier, n_texts)
        try:
            with interrupts.stopping(batch.stop):
                counts = batch.run(lambda counts: _show(console, counts, n_lines))
        except EdgespecError:
            answered = batch.counts.answered + batch.counts.skipped
            if args.out != STREAM and answered:
                console.note(f"{args.out} has {answered:,} answers; the same command goes on")
            raise
    return _report(console, counts, args.out)


def _show(console: Console, counts: BatchCounts, n_lines: int | None) -> None:
    """Show progress, not counting requests answered by earlier runs."""
    share, n_left = None, ""
    if n_lines is not None:
        n_due = max(1, n_lines - counts.skipped)
        share, n_left = counts.answered / n_due, f" of {n_due:,}"
    said = f"{counts.answered:,}{n_left} answered"
    if counts.failed:
        said += f", {counts.failed:,} with an error"
    console.progress_with_rest("requests", share, said)


def _report(console: Console, counts: BatchCounts, name: str) -> int:
    """Report the outcome of the run; returns the exit code, 1 if requests have errors."""
    earlier = f", by earlier runs: {counts.skipped:,}" if counts.skipped else ""
    console.note(f"requests answered: {counts.answered:,}{earlier}")
    n_failed = counts.failed + counts.skipped_failed
    if n_failed:
        where = "the output" if name == STREAM else name
        console.complain(
            f"edgespec: error: {n_failed:,} of {counts.answered + counts.skipped:,} requests have "
            f"an error, which their lines in {where} tell"
        )
    return 1 if n_failed else 0


def _open_input(name: str, stack: ExitStack) -> tuple[BinaryIO, int | None]:
    """The file of requests and the number of its lines; None for a pipe. Raises UsageError."""
    if name == STREAM:
        if sys.stdin is None:
            raise UsageError("IN -: stdin is closed: name a file, or pipe requests to stdin")
        # never closed, since a thread may be waiting for its next line
        return open(sys.stdin.fileno(), "rb", closefd=False), None
    from edgespec.batch.lines import numbered_lines

    with named(f"IN {name}"):
        file = stack.enter_context(open_regular(Path(name)))
        n_lines = sum(1 for _ in numbered_lines(file, _COUNTED_BYTES))
        file.seek(0)
    return file, n_lines


_COUNTED_BYTES = 64 << 10
"""Most bytes read at once while counting lines."""


def _open_output(name: str, input_name: str) -> LineLog:
    if name == STREAM:
        return LineLog.stdout()
    path = Path(name)
    if input_name != STREAM and path.exists() and path.samefile(input_name):
        raise UsageError(f"OUT {name} is IN: name another file for the answers")
    with named(f"OUT {name}"):
        return LineLog.at(path)
