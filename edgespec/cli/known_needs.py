"""Needs of models as they were found, kept in the cache, so that a folder of them is planned once.

Planning a model opens its vocabulary, which takes a second or two with a large one.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgespec.cli.invocation import CommandSettings
from edgespec.files import cache_folder
from edgespec.files.json_file import JsonFile

MAX_MODELS = 500
_NEEDS = "needs of each kind"
MAX_SETTINGS = 8
"""Most settings of one model that are kept."""


@dataclass(frozen=True, slots=True)
class ListedNeeds:
    """Memory that a model needs with some settings."""

    smallest_bytes: int
    """The smallest budget that it can be loaded with."""
    beside_bytes: int
    """Bytes of the model with all of its weights, without those of the process."""


class KnownNeeds:
    """The kind and the needs of one model, as long as its files do not change."""

    def __init__(self, files: list[Path]) -> None:
        """`files` are all of the model's. Raises OSError."""
        content = [version("edgespec")]
        for path in sorted(files):
            status = path.stat()
            content.append(f"{path.resolve()}:{status.st_size}:{status.st_mtime_ns}")
        digest = hashlib.sha256("\n".join(content).encode(errors="surrogateescape")).hexdigest()
        self._file = JsonFile(cache_folder.folder() / "needs", digest[:24], MAX_MODELS)
        known = self._file.read()
        self._known: dict[str, Any] = known if isinstance(known, dict) else {}

    @property
    def embeds(self) -> bool | None:
        """True if the model turns texts into vectors; None if it is not known."""
        found = self._known.get("embeds")
        return found if isinstance(found, bool) else None

    @embeds.setter
    def embeds(self, value: bool) -> None:
        self._known["embeds"] = value
        self._file.write(self._known)

    def needs(self, settings: CommandSettings) -> ListedNeeds | None:
        """Needs of the model with these settings; None if they are not known."""
        try:
            return ListedNeeds(**self._known[_NEEDS][_key(settings)])
        except (LookupError, TypeError):
            return None

    def keep(self, settings: CommandSettings, needs: ListedNeeds) -> None:
        """Remember what the model needs with these settings."""
        known = self._known.get(_NEEDS)
        others = [*known.items()] if isinstance(known, dict) else []
        kept = dict([*others, (_key(settings), asdict(needs))][-MAX_SETTINGS:])
        self._known[_NEEDS] = kept
        self._file.write(self._known)


def _key(settings: CommandSettings) -> str:
    load = settings.load.model_dump_json(exclude={"memory_budget", "model"})
    told = load + settings.generate.model_dump_json()
    return hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()[:16]
