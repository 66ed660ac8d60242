"""`edgespec generate`: continues a prompt, streams the text, and reports."""

from __future__ import annotations

import argparse
import secrets
from argparse import ArgumentParser
from pathlib import Path

from edgespec.cli.commands.generation_report import generation_report
from edgespec.cli.console import STDOUT, Console, report_failure, write_json
from edgespec.cli.flags import groups
from edgespec.cli.flags.checked_values import grammar_from
from edgespec.cli.interrupts import INTERRUPTED, Interrupts
from edgespec.cli.invocation import read_prompt, settings_from
from edgespec.errors import Cancelled, EdgespecError
from edgespec.extras import installed_version
from edgespec.files.named_errors import check_output
from edgespec.reports import Row
from edgespec.tracing.spans import OFF, Trace

_EXAMPLES = """\
examples:
  edgespec generate -p 'def gcd(a, b):' -n 64
  git diff | edgespec generate -m big.gguf -md small.gguf -n 200
  edgespec generate -m big.gguf --memory-budget 50% -f prompt.txt --json > answer.json
  edgespec generate --config memory-8gb -m big.gguf -md small.gguf -p 'Hello' --temp 0.8 --seed 1

The text goes to stdout token by token, everything else to stderr. The draft never changes the text:
the same seed gives the same text with and without it."""


def add_to(parser: ArgumentParser) -> None:
    parser.description = "Continue a prompt."
    parser.epilog = _EXAMPLES
    prompt = parser.add_argument_group("prompt (or text piped to stdin)")
    groups.flag(prompt, "-p --prompt TEXT", "the text to continue")
    groups.flag(prompt, "-f --file FILE", "read the prompt from a UTF-8 file")
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_sampling(parser)
    groups.add_grammar(parser)
    groups.add_texts(parser)
    output = parser.add_argument_group("output")
    groups.flag(
        output,
        "--json FILE",
        "write all figures and the text as a JSON object; without FILE, only that on stdout",
        nargs="?",
        const="-",
    )
    groups.flag(output, "--quiet", "print no notes, progress or summary")
    groups.flag(
        output,
        "--trace FILE",
        "record where time and memory go, for ui.perfetto.dev or chrome://tracing",
    )


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Generate and report; Ctrl-C ends the text early."""
    from edgespec.memory import process

    grammar = grammar_from(args)
    command, prompt = settings_from(args), read_prompt(args)
    settings = command.generate
    json_file = getattr(args, "json", None)
    as_json = json_file == STDOUT
    if json_file and not as_json:
        check_output(Path(json_file))
    console = Console(color="never" if as_json else "auto", quiet="quiet" in args)
    seed = secrets.randbits(32) if settings.seed is None else settings.seed
    with _trace(args) as trace, command.opened(console, trace=trace) as running:
        events = running.stream(
            prompt,
            settings.sampling(seed),
            settings.limit,
            settings.stop,
            console.progress_with_rest,
            grammar,
        )
        text = ""
        try:
            with interrupts.stopping(running.cancel), events:
                for event in events:
                    text += event.text
                    if not as_json:
                        console.token(event)
        except EdgespecError as error:
            if not (json_file and text):
                raise
            return report_failure(error, error.message, error.exit_code, json_file, text=text)
        result = events.result
        if not as_json:  # what an interruption found held back for possible stop strings
            console.say(result.text[len(text) :])
        viewers = None
        if "trace" in args:
            viewers = f"trace: {args.trace}: ui.perfetto.dev or chrome://tracing opens it"
            try:
                trace.close()
            except EdgespecError as error:
                viewers = f"note: {error}"
        peak_bytes = process.peak_rss_bytes()
        console.end_of_progress()
        is_green = result.speculation.drafted and console.color
        report = generation_report(
            result,
            running.plan,
            running.load_report,
            peak_bytes,
            Row("seed", seed, f"seed: {seed}" if settings.temperature > 0 else None),
            Row("model", command.load.model),
            Row("draft", command.load.draft if running.draft else None),
            Row("version", installed_version()),
            Row(format="green: guessed by the draft" if is_green else None),
            Row(format=viewers),
        )
        if json_file:
            write_json(json_file, report.as_dict())
        if not as_json:
            console.end_of_text()
            for line in ("", *report.lines()):
                console.note(line)
        if result.finish_reason == "cancelled":
            return report_failure(Cancelled(), "interrupted", INTERRUPTED, None)
        return 0


def _trace(args: argparse.Namespace) -> Trace:
    if "trace" not in args:
        return OFF
    from edgespec.tracing.trace_file import open_trace

    return open_trace(args.trace)
