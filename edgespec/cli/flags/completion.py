"""The argument of `edgespec completion` and its `--help` text."""

from __future__ import annotations

from argparse import ArgumentParser

_EXAMPLES = """\
examples:
  edgespec completion bash > ~/.local/share/bash-completion/completions/edgespec
  edgespec completion zsh > ~/.zfunc/_edgespec     (a folder of $fpath)"""


def add_to(parser: ArgumentParser) -> None:
    parser.description = "Print a script that makes a shell complete edgespec's commands and flags."
    parser.epilog = _EXAMPLES
    parser.add_argument("shell", choices=("bash", "zsh"))
