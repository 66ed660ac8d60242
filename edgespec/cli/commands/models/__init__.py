"""`edgespec models ...`: names, descriptions, downloads and new models."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module

from edgespec.cli.console import Console
from edgespec.cli.interrupts import Interrupts

_EXAMPLES = """\
examples:
  edgespec models list
  edgespec models show draft
  edgespec generate -m target -p 'import os'

A model is given by its name in `models list` (`embedded` and `target` are the target that comes
with edgespec, `draft` is its draft, `mixture` a mixture of experts for the same draft) or by the
path of a file or folder: write ./target for a file of that name."""

COMMANDS = {
    "list": ("describing", "list the models that come with edgespec or are cached"),
    "show": ("describing", "describe a model"),
    "pull": ("keeping", "download a model"),
    "rm": ("keeping", "delete a model of the cache"),
    "enlarge": ("making", "write a larger model that generates the same text"),
    "draft": ("making", "make a draft from the target itself"),
}
"""Module and description of each command, whose flags `add_NAME` adds and which `run_NAME` runs."""


def add_to(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of `edgespec models`, by name."""
    parser.description = "List, describe, download and make models."
    parser.epilog = _EXAMPLES
    adder = parser.add_subparsers(title="commands", dest="action", metavar="COMMAND", required=True)
    commands = {}
    for name, (_, text) in COMMANDS.items():
        commands[name] = adder.add_parser(name, help=text)
        _of(name, "add")(commands[name])
    return commands


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    """Run the chosen subcommand."""
    _of(args.action, "run")(args, Console(quiet="quiet" in args))
    return 0


def _of(name: str, what: str) -> Callable[..., None]:
    module = import_module(f"edgespec.cli.commands.models.{COMMANDS[name][0]}")
    found: Callable[..., None] = getattr(module, f"{what}_{name}")
    return found
