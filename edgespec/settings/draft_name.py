"""The name of a draft that is made from the target."""

from __future__ import annotations

from pathlib import Path

SELF = "self"
"""Its name in settings; a file of this name is written ./self."""
OWN_DRAFT = Path("<self>")
"""Stands for it until it is made or found in the cache."""


def draft_named(value: object) -> object:
    """A draft as settings name it, with `OWN_DRAFT` for "self"."""
    return OWN_DRAFT if value == SELF else value
