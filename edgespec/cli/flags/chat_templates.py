"""The flags that choose a chat template instead of the model's own, spelled as in llama.cpp."""

from __future__ import annotations

import argparse

from edgespec.cli.flags import groups
from edgespec.cli.flags.checked_values import text_or_file

MAX_BYTES = 4 << 20


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("chat template")
    groups.flag(
        group,
        "--chat-template TEXT",
        "Jinja or, for GGUF models, a name that llama.cpp knows (chatml, llama3, ...), instead "
        "of the model's own template",
    )
    groups.flag(group, "--chat-template-file FILE", "the same, from a UTF-8 file")


def template_from(args: argparse.Namespace) -> str | None:
    """The chosen chat template; None leaves the model's own. Raises UsageError."""
    from edgespec.chat import prompts  # with numpy, which flags do without

    prompts.check_installed()
    return text_or_file(args, "chat_template", MAX_BYTES)
