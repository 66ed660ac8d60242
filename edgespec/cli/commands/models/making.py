"""`edgespec models enlarge`, `draft` and `adapt`: new models from others."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.cli.commands.models import checking, describing
from edgespec.cli.commands.models.checking import CheckSettings
from edgespec.cli.console import Console
from edgespec.cli.flags import groups
from edgespec.cli.flags.checked_values import check_output
from edgespec.cli.invocation import read_prompts
from edgespec.errors import UsageError
from edgespec.models import catalogue
from edgespec.reports import Report, Row
from edgespec.settings.config import LoadSettings
from edgespec.settings.units import format_size, parse_size

if TYPE_CHECKING:
    from edgespec.models.pair_fit import PairFit
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


_DRAFT = """\
Make a draft for TARGET from TARGET itself, for a model without a small one of its family.

OUT has all layers in a coarse quantisation, no tokenizer, and a head for the tokens that texts use.
Its coarseness is chosen by expected tokens per second under the memory budget, and the pair is
measured on a few texts. Nothing is written that would be slower than no draft. `-md self` does the
same and keeps the draft in the cache.

For an ONNX target, make the draft from a GGUF file of the same model: `models check` says whether
their vocabularies are the same."""

_DRAFT_EXAMPLES = """\
examples:
  edgespec models draft big.gguf draft.gguf --memory-budget 4GiB
  edgespec models check big-onnx draft.gguf      (the draft comes from a GGUF file of big-onnx)"""

_ADAPT = """\
Train DRAFT on what TARGET answers to prompts like yours, so that it guesses more of such texts. NEW
is DRAFT with other weights, in the same quantisation (of K-quants in Q8_0); DRAFT stays as it is.

A tenth of the prompts is not learnt: they measure the draft before and after, as `models check`
does. A draft that learns one kind of texts may guess others less well.

Drafts are GGUF files of the architecture llama. Training takes minutes, in a process of its own
that no memory budget limits: about 16 bytes for each parameter, and PyTorch."""

_ADAPT_EXAMPLES = """\
examples:
  edgespec models adapt big.gguf small.gguf -o mine.gguf --prompts questions.txt -n 200
  edgespec serve -m big.gguf -md mine.gguf"""


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
    groups.flag(parser, "--force", "overwrite OUT")
    groups.add(parser, LoadSettings, "memory_budget", "ctx_size", "threads")
    groups.add_plain_output(parser)


def run_draft(args: argparse.Namespace, console: Console) -> None:
    from edgespec.session import own_draft

    target, out = catalogue.find(args.target), Path(args.out)
    check_output(out)
    if out.exists() and "force" not in args:
        raise UsageError(f"{out} exists: --force overwrites it")
    if out.exists() and out.samefile(target):
        raise UsageError(f"{out} is the target itself: write the draft elsewhere")
    settings = checking.load_settings(args, target)
    made = own_draft.make(target, out, settings, console.progress_with_rest)
    lines = own_draft_lines(made, target, out)
    console.result(args, Report(Row("path", out), Row(value=made, format=lines)))


def add_adapt(parser: argparse.ArgumentParser) -> None:
    parser.description = _ADAPT
    parser.epilog = _ADAPT_EXAMPLES
    parser.add_argument("target", metavar="TARGET", help="the big model, a name or a path")
    parser.add_argument("draft", metavar="DRAFT", help="the small model, a name or a path")
    groups.flag(parser, "-o --out NEW", "the GGUF file to write, a new one", required=True)
    checking.add_measuring(parser)


def run_adapt(args: argparse.Namespace, console: Console) -> None:
    from edgespec.files.unfinished import scratch_folder
    from edgespec.memory import process
    from edgespec.models import draft_training

    target, draft, out = catalogue.find(args.target), catalogue.find(args.draft), Path(args.out)
    check_output(out)
    if out.exists():
        raise UsageError(f"{out} exists and is not overwritten: name another file")
    draft_training.check(draft)
    told, load = groups.given(args, CheckSettings), checking.load_settings(args, target, draft)
    learnt, held_out = draft_training.divided(read_prompts(told.prompts))
    before = checking.measured(args, target, draft, held_out, console)
    if "json" not in args:
        console.write("\n".join(["Before:", *before.report(draft).lines(console.width), ""]))
    texts = draft_training.answers(load, learnt, told.max_tokens, console.progress_with_rest)
    with scratch_folder(out.parent) as folder:
        new, n_threads = folder / "adapted.gguf", load.threads or process.usable_cores()
        loss = draft_training.train(draft, new, out.stem, texts, n_threads, console.progress)
        after = checking.measured(args, target, new, held_out, console)
        _place(new, out)
    trained = {"n_texts": len(texts), "n_tokens": sum(len(text.said) for text in texts)}
    report = Report(
        Row("before", before.report(draft), "After:"),
        Row("after", after.report(out)),
        Row("path", out, ""),
        Row("trained", trained | {"loss": loss}, adapted_lines(before.fit, after.fit, out)),
    )
    console.result(args, report)


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


def own_draft_lines(made: OwnDraft, target: Path, out: Path) -> list[str]:
    """Lines about a draft made from its target, with what was measured."""
    return [
        f"{out}: {target.name} in {made.kind}, {format_size(made.size_bytes)}",
        f"{made.tokens_per_pass:.2f} tokens per pass, {made.tokens_per_s:.2f} tokens/s under "
        f"{format_size(made.budget_bytes)}; {made.alone_tokens_per_s:.2f} without a draft",
        f"{made.missing_share:.1%} of the texts' tokens are not among those that it can guess",
    ]


def adapted_lines(before: PairFit, after: PairFit, out: Path) -> list[str]:
    """Lines about the effect of a training."""
    old, new = before.together.tokens_per_pass, after.together.tokens_per_pass
    lines = [
        f"Tokens per pass with {after.together.drafted_nodes} guesses: {old:.2f} "
        f"before, {new:.2f} after ({100 * (new / old - 1):+.0f} %).",
        f"{out}: use it with -md {out}",
    ]
    if new <= old:
        lines[-1] = f"{out} guesses these texts no better: more or other texts may help."
    return lines
