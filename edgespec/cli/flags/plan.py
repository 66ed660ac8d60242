"""The flags of `edgespec plan` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser

from edgespec.cli.flags import groups
from edgespec.settings.config import GenerateSettings

_EXAMPLES = """\
examples:
  edgespec plan -m big.gguf -md small.gguf --memory-budget 4GiB
  edgespec plan -m big.gguf --memory-budget 2G -c 8192 --disk-bandwidth 300M --json

A budget that is too small ends with exit code 4 and the smallest budget that works."""


def add_to(parser: ArgumentParser) -> None:
    parser.description = "Show how a memory budget would be divided, and the predicted speed."
    parser.epilog = _EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_parallel(parser)
    guesses = parser.add_argument_group("draft")
    groups.add(guesses, GenerateSettings, draft_max="N")
    storage = parser.add_argument_group("storage")
    storage.add_argument(
        "--disk-bandwidth",
        metavar="RATE",
        help="disk speed to predict with, in bytes per second like 300M, in decimal units as "
        "storage is sold (default: measured in a third of a second)",
    )
    groups.add_output(parser)
