"""Fits descriptions and examples of `--help` into a terminal.

Sources are written for 100 columns: paragraphs at the left margin, lists of words and their
meanings, and examples, whose commands stay commands.
"""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator, Sequence

_ITEM = re.compile(r"( +\S.*? {2,})(?=\S)")
"""The word of a list's item, with the blanks before and after it."""
_COMMAND = re.compile(r" {2}(?!\()(?:(?! {2}).)*\b(edgespec|curl|ssh) ")
"""The beginning of an example's command."""
_WORD = re.compile(r"(?:--?[\w-]+ (?!-))?(?:'[^']*'|\"[^\"]*\"|\S)+")
"""A word of a command line, or a flag and its value; what is quoted stays whole."""


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps descriptions at words, and shows the defaults of switches."""

    def add_argument(self, action: argparse.Action) -> None:
        """Add an action to the help; unlike argparse's, it counts the margin of its subcommands."""
        super().add_argument(action)
        if action.help is not argparse.SUPPRESS:
            for part in self._iter_indented_subactions(action):
                n_columns = len(self._format_action_invocation(part)) + self._current_indent
                self._action_max_length = max(self._action_max_length, n_columns)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(line for block in _blocks(text) for line in _fitted(block, width))

    def _get_help_string(self, action: argparse.Action) -> str | None:
        is_switch = isinstance(action, argparse._StoreTrueAction)
        if is_switch and action.help and "(default: " not in action.help:
            return f"{action.help} (default: off)"
        return action.help


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs, items and commands of a text, each as one line."""
    block = ""
    for line in text.splitlines():
        if block and _continues(line, block):
            block += f" {line.strip()}"
        else:
            if block:
                yield block
            block = line
        if not line:
            yield ""
    if block:
        yield block


def _continues(line: str, block: str) -> bool:
    """True if a line belongs to the paragraph or the item of the block before it."""
    if not line or _COMMAND.match(line):
        return False
    begins, margin = len(line) - len(line.lstrip()), _margin(block)
    return begins == margin and not (margin == 2 and _ITEM.match(line))


def _margin(block: str) -> int:
    """Column at which the lines of a block begin, after its first one."""
    item = _ITEM.match(block)
    if item is not None and not _COMMAND.match(block):
        return len(item[1])
    return len(block) - len(block.lstrip())


def _fitted(block: str, width: int) -> Sequence[str]:
    if len(block) <= width:
        return [block]
    if _COMMAND.match(block):
        return list(_command(block, width))
    margin = min(_margin(block), width // 2)
    first = block[: _margin(block)]
    return textwrap.wrap(
        block[len(first) :],
        width,
        initial_indent=first,
        subsequent_indent=" " * margin,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _command(line: str, width: int) -> Iterator[str]:
    """A command on several lines, as a shell takes them; a remark stands below."""
    command, _, remark = line.strip().partition("  ")
    part = " "
    for word in _WORD.findall(command):
        if len(part) + len(word) + 3 > width:
            yield f"{part} \\"
            part = "     "
        part += f" {word}"
    yield part
    if remark:
        yield f"      {remark.strip()}"
