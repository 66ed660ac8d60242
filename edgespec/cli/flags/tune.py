"""The flags of `edgespec tune` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser

from edgespec.cli.flags import groups

SECONDS = 90
N_PROMPTS = 6

_DESCRIPTION = """\
Find the fastest settings for a pair of models on this device under a memory budget, and save them
as a preset.

Only settings that do not change the text are tried: which draft, guesses from the text alone, none,
the size of the token tree, drafting while the target verifies, threads of both models, and the
draft on a GPU. Every draft that is given or comes with the target competes, however short the time:
those of -md, the head of a fetched model, and the target's own layer (MTP). Each candidate
continues the same prompts in a process of its own within the budget, sampled as `edgespec chat`
does (--temp). They take turns, and after each turn the slower half is dropped. The defaults are
kept unless a candidate is faster by more than the noise. If time is left, the best and the defaults
also write greedy texts.

Later commands with the same device, models and budget use the preset and print a note; --no-tuned
ignores it. --out writes it to a file for --config instead. Afterwards `edgespec plan` predicts the
tokens per second of this pair."""

_EPILOG = """\
examples:
  edgespec tune -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec tune -m big.gguf -md small.gguf -md smaller.gguf --memory-budget 4GiB --prompts mine.txt
      find the better of two drafts for texts like those in mine.txt
  edgespec tune -m big.gguf -md small.gguf --memory-budget 4GiB --out big-4gib.toml
  edgespec generate --config big-4gib.toml -p 'Once upon a time'

Settings that change the text (KV types below f16, another batch size) or what fits (a smaller
context) are listed with their predicted speed, and never chosen."""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    groups.add_models(parser, tuning=True)
    groups.add_memory(parser)
    group = parser.add_argument_group("tuning")
    group.add_argument(
        "--prompts",
        metavar="FILE",
        help="file of prompts like yours: one a line, or in .jsonl an object's `prompt`; the first "
        f"{N_PROMPTS} are used (default: beginnings of Python code)",
    )
    group.add_argument(
        "--temp",
        metavar="T",
        dest="temperature",
        help="judge by texts of this temperature, with the filters of `edgespec chat`; 0: greedy "
        f"texts (default: {groups.MEASURED_TEMPERATURE})",
    )
    group.add_argument(
        "--seconds",
        metavar="N",
        help=f"seconds that measuring may take, roughly (default: {SECONDS})",
    )
    group.add_argument(
        "--disk-bandwidth",
        metavar="RATE",
        help="limit reads to so many bytes per second, like 300M, to tune for a slower disk; needs "
        "the right to make control groups, as `edgespec bench` does",
    )
    output = groups.add_output(parser)
    output.add_argument("--out", metavar="FILE", help="write the preset to FILE")
    output.add_argument("--quiet", action="store_true", help="print no notes or progress")
