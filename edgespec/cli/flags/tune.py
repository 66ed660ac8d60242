"""The flags of `edgespec tune` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import TypeVar

from edgespec.cli.flags import groups

P = TypeVar("P", bound=ArgumentParser)

SECONDS = 90
N_PROMPTS = 6

_DESCRIPTION = """\
Find the settings with which a pair writes fastest on this device under a memory budget, and keep
them as a preset.

Settings that leave the text as it is compete: threads of both models, the size of the trees,
drafting beside passes, which draft, guesses from the text alone, none, the draft on a GPU. Each
continues the same prompts in a process of its own within the budget, in turns; the slower half
leaves after each turn. Where nothing beats the defaults by more than the noise, they stay.

The preset is found again by itself for the same device, models and budget: a note says so, and
--no-tuned ignores it. With --out it is written to a file that --config takes instead. After it
`edgespec plan` predicts tokens a second of this pair."""

_EPILOG = """\
examples:
  edgespec tune -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec tune -m big.gguf -md small.gguf -md smaller.gguf --memory-budget 4GiB --prompts mine.txt
      which of two drafts is the better one for texts like mine
  edgespec tune -m big.gguf -md small.gguf --memory-budget 4GiB --out big-4gib.toml
  edgespec generate --config big-4gib.toml -p 'Once upon a time'

Changes that would alter the text (KV types below f16, another batch size) or what fits (fewer
context tokens) are proposed with the speed that is predicted for them, and never chosen."""


def add_to(parser: P) -> P:
    """Give `parser` the flags of tuning."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    groups.add_models(parser, tuning=True)
    groups.add_memory(parser)
    group = parser.add_argument_group("tuning")
    group.add_argument(
        "--prompts",
        metavar="FILE",
        help="texts like yours: one a line, or in .jsonl an object's `prompt` "
        f"(the first {N_PROMPTS} are used; default: Python code begun)",
    )
    group.add_argument(
        "--seconds",
        metavar="N",
        help=f"that measuring may take, more or less (default: {SECONDS})",
    )
    group.add_argument(
        "--disk-bandwidth",
        metavar="RATE",
        help="measure as on a disk of so many bytes a second, like 300M: needs the right to make "
        "control groups, as `edgespec bench` does",
    )
    output = groups.add_output(parser)
    output.add_argument("--out", metavar="FILE", help="write the preset there")
    output.add_argument("--quiet", action="store_true", help="no notes or progress")
    return parser
