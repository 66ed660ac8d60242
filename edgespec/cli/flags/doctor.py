"""The flags of `edgespec doctor` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser

from edgespec.cli.flags import groups

_EXAMPLES = """\
examples:
  edgespec doctor
  edgespec doctor -m big.gguf -md small.gguf --memory-budget 4GiB

To measure a disk it writes at most 64 MiB. Models are measured for about half a minute, in a
process within the budget; `edgespec plan` loads nothing."""


def add_to(parser: ArgumentParser) -> None:
    parser.description = (
        "Examine this machine: cores, memory, disks and their speed, GPUs, libraries and the\n"
        "cache folder. With models, or any flag of theirs, also measure what limits their speed\n"
        "and what would help."
    )
    parser.epilog = _EXAMPLES
    groups.add_models(parser)
    groups.add_memory(parser)
    groups.add_output(parser)
