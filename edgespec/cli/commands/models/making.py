"""`edgespec models enlarge` and `draft`: new models from others."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.cli.commands.models import describing
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.errors import UsageError
from edgespec.files import cache_folder
from edgespec.files.named_errors import check_output
from edgespec.models import catalogue
from edgespec.reports import Report, Row
from edgespec.settings.config import LoadSettings
from edgespec.settings.units import format_size, parse_size

if TYPE_CHECKING:
    from edgespec.session.own_draft import OwnDraft
    from edgespec.values import EnlargeReport

_ENLARGE = """\
Write a model of about the given size that computes what SOURCE computes: the honest way to try
paging without a download. Memory stays small, whatever the size."""

_ENLARGE_EXAMPLES = """\
example:
  edgespec models enlarge embedded big.gguf --size 1GiB"""


_DRAFT = """\
Make a draft for TARGET from TARGET itself, for a model without a small one of its family.

OUT has all layers in a coarse quantisation, no tokenizer, and a head for the tokens that texts use.
Its coarseness is chosen by expected tokens per second under the memory budget, and the pair is
measured on a few texts. Nothing is written that would be slower than no draft. `-md self` does the
same and keeps the draft in the cache.

For an ONNX target, make the draft from a GGUF file of the same model."""

_DRAFT_EXAMPLES = """\
example:
  edgespec models draft big.gguf draft.gguf --memory-budget 4GiB"""


def add_enlarge(parser: argparse.ArgumentParser) -> None:
    parser.description = _ENLARGE
    parser.epilog = _ENLARGE_EXAMPLES
    parser.add_argument("source", metavar="SOURCE", help="a GGUF file of a LLaMA, or a name")
    parser.add_argument("out", metavar="OUT", help="the file to write")
    groups.flag(parser, "--size SIZE", "size of OUT, such as 512MiB or 24GiB", required=True)
    groups.add_plain_output(parser)


def run_enlarge(args: argparse.Namespace, console: Console) -> None:
    from edgespec.tools import enlarge

    source, out = catalogue.find(args.source), Path(args.out)
    size_bytes = parse_size(args.size)
    written = enlarge(source, out, size_bytes, console.progress)
    console.result(args, Report(Row(value=written, format=enlarged_line(written))))


def add_draft(parser: argparse.ArgumentParser) -> None:
    parser.description = _DRAFT
    parser.epilog = _DRAFT_EXAMPLES
    parser.add_argument("target", metavar="TARGET", help="a GGUF file or a name")
    parser.add_argument("out", metavar="OUT", help="the GGUF file to write")
    groups.add(parser, LoadSettings, "memory_budget", "ctx_size", "threads")
    groups.add_plain_output(parser)


def run_draft(args: argparse.Namespace, console: Console) -> None:
    from edgespec.session import own_draft

    target, out = catalogue.find(args.target), Path(args.out)
    check_output(out)
    if out.exists():
        raise UsageError(f"{out} exists: name another file, or delete it")
    settings = groups.given(args, LoadSettings, model=target)
    made = own_draft.make(target, lambda kind: out, settings, console.progress_with_rest)
    lines = own_draft_lines(made, target, out)
    told = {key: one for key, one in asdict(made).items() if key != "refusal"}
    console.result(args, Report(Row("path", out), Row(value=told, format=lines)))


def enlarged_line(written: EnlargeReport) -> str:
    return (
        f"{written.path}: {format_size(written.size_bytes)}, {written.layers} layers, "
        f"{describing.rounded(written.parameters)} parameters"
    )


def own_draft_lines(made: OwnDraft, target: Path, out: Path) -> list[str]:
    """Lines about a draft made from its target, with what was measured."""
    lower = cache_folder.lower_parts(out)
    return [
        f"{out}: {target.name} in {made.kind}, {format_size(made.size_bytes)}",
        *([f"{lower}: the lower bits, to be kept beside it"] * lower.exists()),
        f"{made.tokens_per_pass:.2f} tokens per pass, {made.tokens_per_s:.2f} tokens/s under "
        f"{format_size(made.budget_bytes)}; {made.alone_tokens_per_s:.2f} without a draft",
    ]
