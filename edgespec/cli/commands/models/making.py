"""`edgespec models enlarge`, `draft` and `adapt`: new models from others."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.cli.commands.models import checking, describing
from edgespec.cli.commands.models.checking import CheckSettings, Prompts
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.flags.checked_values import check_output
from edgespec.cli.invocation import read_prompts
from edgespec.errors import UsageError
from edgespec.models import catalogue
from edgespec.reports import Column, Report, Row, Table
from edgespec.settings.config import LoadSettings
from edgespec.settings.units import format_size, parse_size

if TYPE_CHECKING:
    from edgespec.models.draft_training import AdaptationResult
    from edgespec.models.pair_fit import PairFit
    from edgespec.models.self_draft import DraftMemory, SelfDraft
    from edgespec.session.own_draft import OwnDraft
    from edgespec.values import EnlargeReport

_ENLARGE = """\
Write a model of about the given size that computes what SOURCE computes: the honest way to try
paging without a download. Memory stays small, whatever the size.

--type stores SOURCE in another quantisation first: what is preserved then is the function of the
model so stored, rounded once more if SOURCE was rounded already, as in Q8_0."""

_ENLARGE_EXAMPLES = """\
examples:
  edgespec models enlarge embedded big.gguf --size 1GiB
  edgespec models enlarge embedded big.gguf --size 24GiB --type Q4_K"""


DRAFT_TYPES = "Q8_0,Q4_0,Q2_K"

_DRAFT = """\
Make a draft for TARGET from TARGET itself, for a model without a small one of its family.

OUT has all layers in a coarse quantisation, no tokenizer, and a head for the tokens that texts use.
Its coarseness is chosen by expected tokens per second under the memory budget, and the pair is
measured on a few texts. Nothing is written that would be slower than no draft. `-md self` does the
same and keeps the draft in the cache.

With --size or --types, OUT is a subset of the layers: layers are removed one by one, always the one
whose removal keeps most of the target's tokens ranked first, until the rest fits the size in each
of the types. The best draft is written and measured as in `models check`, on greedy texts.

For an ONNX target, make the draft from a GGUF file of the same model: `models check` says whether
their vocabularies are the same."""

_DRAFT_EXAMPLES = """\
examples:
  edgespec models draft big.gguf draft.gguf --memory-budget 4GiB
  edgespec models draft big.gguf draft.gguf --size 700MiB --types Q4_0,Q2_K --memory-budget 4GiB
  edgespec models check big-onnx draft.gguf      (the draft comes from a GGUF file of big-onnx)"""

_ADAPT = """\
Train a draft on the texts that its target wrote while `--learn` was given, so that it guesses more
of such texts. NEW is DRAFT with other weights, in the same quantisation; DRAFT stays as it is.

A tenth of the texts is not learnt: their prompts measure the draft before and after, as `models
check` does. A draft that learns one kind of texts may guess others less well.

Drafts are GGUF files of the architecture llama. Training takes minutes, in a process of its own
that no memory budget limits: about 16 bytes for each parameter, and PyTorch."""

_ADAPT_EXAMPLES = """\
examples:
  edgespec serve -m big.gguf -md small.gguf --learn
  edgespec models adapt small.gguf -o mine.gguf
  edgespec serve -m big.gguf -md mine.gguf
  edgespec models forget                        (delete the texts that --learn kept)"""


def add_enlarge(parser: argparse.ArgumentParser) -> None:
    parser.description = _ENLARGE
    parser.epilog = _ENLARGE_EXAMPLES
    parser.add_argument("source", metavar="SOURCE", help="a GGUF file of a LLaMA, or a name")
    parser.add_argument("out", metavar="OUT", help="the file to write")
    groups.flag(parser, "--size SIZE", "size of OUT, such as 512MiB or 24GiB", required=True)
    groups.flag(
        parser,
        "--type TYPE",
        "quantisation of OUT as llama.cpp names it: Q4_0, Q4_K, Q8_0, F16, ... (default: SOURCE's)",
    )
    groups.flag(parser, "--force", "overwrite OUT")
    groups.add_plain_output(parser)


def run_enlarge(args: argparse.Namespace, console: Console) -> None:
    from edgespec.models import enlarging

    source, out = catalogue.find(args.source), Path(args.out)
    size_bytes = parse_size(args.size, named=f"--size {args.size}")
    kind = getattr(args, "type", None)
    with enlarging.quantised(source, kind, out.parent, console.progress) as model:
        written = enlarging.enlarge(model, out, size_bytes, console.progress, "force" in args)
    console.result(args, Report(Row(value=written, format=enlarged_line(written))))


def add_draft(parser: argparse.ArgumentParser) -> None:
    parser.description = _DRAFT
    parser.epilog = _DRAFT_EXAMPLES
    parser.add_argument("target", metavar="TARGET", help="a GGUF file or a name")
    parser.add_argument("out", metavar="OUT", help="the GGUF file to write")
    groups.flag(
        parser, "--size SIZE", "largest size of OUT (default with --types: a quarter of TARGET)"
    )
    groups.flag(
        parser,
        "--types TYPES",
        f"quantisations to compare, separated by commas (default with --size: {DRAFT_TYPES})",
    )
    groups.flag(parser, "--force", "overwrite OUT")
    checking.add_measuring(parser)


def run_draft(args: argparse.Namespace, console: Console) -> None:
    from edgespec.models import self_draft
    from edgespec.session import session

    target, out = catalogue.find(args.target), Path(args.out)
    check_output(out)
    if out.exists() and "force" not in args:
        raise UsageError(f"{out} exists: --force overwrites it")
    if out.exists() and out.samefile(target):
        raise UsageError(f"{out} is the target itself: write the draft elsewhere")
    settings = checking.load_settings(args, target)
    if not {"size", "types"} & vars(args).keys():
        _make_copy(args, settings, out, console)
        return
    told = groups.given(args, CheckSettings)
    quarter = int(self_draft.SHARE * target.stat().st_size) if target.is_file() else 1
    job = self_draft.DraftJob(
        size_bytes=parse_size(args.size) if "size" in args else quarter,
        types=_types(getattr(args, "types", DRAFT_TYPES), self_draft.BITS),
        prompts=tuple(read_prompts(told.prompts)),
        max_tokens=told.max_tokens,
        load=settings,
    )
    alone = session.plan(settings)
    best, compared = self_draft.make(target, out, job, console.progress)
    if "json" not in args:
        console.write("\n".join(drafts_table(compared, out)))
    measured = checking.measured(args, target, out, job.prompts, console)
    room = self_draft.draft_memory(alone, measured.plan)
    report = Report(
        Row("made", best),
        Row("compared", compared),
        Row("room", room, room_line),
        Row(value=measured.report(out)),
    )
    console.result(args, report)


def add_adapt(parser: argparse.ArgumentParser) -> None:
    parser.description = _ADAPT
    parser.epilog = _ADAPT_EXAMPLES
    parser.add_argument("draft", metavar="DRAFT", help="the draft that guessed, a name or a path")
    groups.flag(parser, "-o --out NEW", "the GGUF file to write, a new one", required=True)
    groups.flag(
        parser,
        "--learnt-with TARGET",
        "the target that wrote the texts (default: the one that did, if it was one)",
    )
    checking.add_measuring(parser, "of a tenth of the kept texts, 20 at most, which are not learnt")


def run_adapt(args: argparse.Namespace, console: Console) -> None:
    from edgespec.files.unfinished import scratch_folder
    from edgespec.memory import process
    from edgespec.models import draft_training

    draft, out = catalogue.find(args.draft), Path(args.out)
    check_output(out)
    if out.exists():
        raise UsageError(f"{out} exists and is not overwritten: name another file")
    draft_training.check(draft)
    named = catalogue.find(args.learnt_with) if "learnt_with" in args else None
    data = draft_training.training_data(draft, named)
    file = groups.given(args, CheckSettings).prompts
    prompts: Prompts = read_prompts(file) if file else data.prompts
    before = checking.measured(args, data.target, draft, prompts, console)
    if "json" not in args:
        console.write("\n".join(["Before:", *before.report(draft).lines(console.width), ""]))
    load = checking.load_settings(args, data.target, draft)
    with scratch_folder(out.parent) as folder:
        new, n_threads = folder / "adapted.gguf", load.threads or process.usable_cores()
        adapted = draft_training.train(
            draft, new, out.stem, data.learnt, n_threads, console.progress
        )
        after = checking.measured(args, data.target, new, prompts, console)
        _place(new, out)
    report = Report(
        Row("before", before.report(draft), "After:"),
        Row("after", after.report(out)),
        Row("path", out, ""),
        Row("trained", adapted, adapted_lines(adapted, before.fit, after.fit, out)),
    )
    console.result(args, report)


def _make_copy(
    args: argparse.Namespace, settings: LoadSettings, out: Path, console: Console
) -> None:
    """Make a draft of all layers, chosen by expected tokens per second."""
    from edgespec.session import own_draft

    told = groups.given(args, CheckSettings)
    prompts = read_prompts(told.prompts) if told.prompts else own_draft.PROMPTS
    n_tokens = told.max_tokens if "max_tokens" in args else own_draft.N_TOKENS
    show = console.progress_with_rest
    made = own_draft.make(settings.model, out, settings, show, prompts, n_tokens)
    lines = own_draft_lines(made, settings.model, out)
    console.result(args, Report(Row("path", out), Row(value=made, format=lines)))


def _types(text: str, known: Collection[str]) -> tuple[str, ...]:
    types = tuple(dict.fromkeys(kind.strip().upper() for kind in text.split(",")))
    for kind in types:
        if kind not in known:
            raise UsageError(f"--types {text}: {kind!r} is not one of {', '.join(known)}")
    return types


def _place(new: Path, out: Path) -> None:
    """Move a file without overwriting one that was created meanwhile."""
    try:
        out.hardlink_to(new)
    except FileExistsError as error:
        raise UsageError(f"{out} exists by now and is not overwritten: start again") from error
    except OSError:  # a file system without hard links
        new.rename(out)


def enlarged_line(written: EnlargeReport) -> str:
    return (
        f"{written.path}: {format_size(written.size_bytes)}, {written.layers} layers, "
        f"{describing.rounded(written.parameters)} parameters"
    )


def drafts_table(compared: Sequence[SelfDraft], out: Path) -> list[str]:
    """Table of the candidate drafts, the best and written one first."""
    columns: list[Column[SelfDraft]] = [
        Column("type", "type", is_left=True),
        Column("layers", "layers", lambda draft: len(draft.layers)),
        Column("size_bytes", "size", format=format_size),
        Column("agreement", "top-1 agreement", format="{:.1%}".format),
    ]
    best = compared[0]
    kept = ", ".join(map(str, best.layers))
    written = f"{out}: {best.type}, the target's layers {kept}"
    return [*Table(columns, compared).lines(), written, ""]


def own_draft_lines(made: OwnDraft, target: Path, out: Path) -> list[str]:
    """Lines about a draft made from its target, with what was measured."""
    return [
        f"{out}: {target.name} in {made.kind}, {format_size(made.size_bytes)}",
        f"{made.tokens_per_pass:.2f} tokens per pass, {made.tokens_per_s:.2f} tokens/s under "
        f"{format_size(made.budget_bytes)}; {made.alone_tokens_per_s:.2f} without a draft",
        f"{made.missing_share:.1%} of the texts' tokens are not among those that it can guess",
    ]


def room_line(room: DraftMemory) -> str:
    """One line about the memory for a draft beside the target."""
    return (
        f"Of the budget of {format_size(room.budget_bytes)} the draft takes "
        f"{format_size(room.draft_bytes)}, weights, KV and buffers; the target leaves room for "
        f"{format_size(room.max_bytes)}. A pass reads {format_size(room.read_bytes)}, without "
        f"the draft {format_size(room.read_alone_bytes)}.\n"
    )


def adapted_lines(
    adapted: AdaptationResult, before: PairFit, after: PairFit, out: Path
) -> list[str]:
    """Lines about the training of an adapted draft, and its effect."""
    old, new = before.largest_tree.tokens_per_pass, after.largest_tree.tokens_per_pass
    lines = [
        f"Learnt {adapted.n_tokens:,} tokens of {adapted.n_texts} answers, in "
        f"{adapted.n_corrections:,} places the target's distribution.",
        f"Tokens per pass with {after.largest_tree.drafted_nodes} guesses of the draft: {old:.2f} "
        f"before, {new:.2f} after ({100 * (new / old - 1):+.0f} %).",
        f"{out}: use it with -md {out}",
    ]
    if new <= old:
        lines[-1] = f"{out} guesses these texts no better: more or other texts may help."
    return lines
