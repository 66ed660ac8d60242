"""The flags of the prompt cache."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.cli.flags import groups
from edgespec.errors import UsageError

if TYPE_CHECKING:
    from edgespec.state.prompt_cache import PromptCache


def add_flags(parser: argparse.ArgumentParser, keeps_text: bool) -> None:
    """Flags for the prompt cache. With `keeps_text`, generated text is always cached, too."""
    group = parser.add_argument_group("prompt cache")
    what = "conversation" if keeps_text else "prompt"
    groups.flag(
        group,
        "--prompt-cache FILE",
        f"save the model's state after the {what} to FILE, and continue from it next time",
    )
    if not keeps_text:
        groups.flag(group, "--prompt-cache-all", "save the state after the new text, too")
    groups.flag(group, "--prompt-cache-ro", "read FILE, never write it")


def cache_from(args: argparse.Namespace) -> PromptCache | None:
    """The prompt cache, or None. Sets `args.state_files`, so that the plan reserves memory for it.

    Raises UsageError and StateError.
    """
    if "prompt_cache" not in args:
        for name in ("prompt_cache_all", "prompt_cache_ro"):
            if name in args:
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag} needs --prompt-cache FILE")
        return None
    if "prompt_cache_all" in args and "prompt_cache_ro" in args:
        raise UsageError("--prompt-cache-all contradicts --prompt-cache-ro: leave one of them out")
    from edgespec.state.prompt_cache import PromptCache

    args.state_files = True
    return PromptCache(Path(args.prompt_cache).expanduser(), "prompt_cache_ro" in args)
