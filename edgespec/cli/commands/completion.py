"""`edgespec completion`: prints a script that makes a shell complete commands and flags."""

from __future__ import annotations

import argparse

from edgespec.cli.console import Console
from edgespec.cli.flags import parser as flag_parser
from edgespec.cli.interrupts import Interrupts

_EXAMPLES = """\
examples:
  edgespec completion bash > ~/.local/share/bash-completion/completions/edgespec
  edgespec completion zsh > ~/.zfunc/_edgespec     (a folder of $fpath)"""


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print a script that makes a shell complete edgespec's commands and flags."
    parser.epilog = _EXAMPLES
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(args: argparse.Namespace, interrupts: Interrupts) -> int:
    Console().write(flag_parser.completion(args.shell))
    return 0
