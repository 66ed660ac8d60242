"""Fetches a model from the hub, or finds it in the cache when the hub does not serve.

The cache is huggingface_hub's own, which other programs share: HF_HOME, HF_TOKEN, HF_ENDPOINT and
HF_HUB_OFFLINE mean what they mean to all its tools.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from huggingface_hub import constants, get_token, hf_hub_url

from edgespec.errors import FetchError, ModelError
from edgespec.hub import listing
from edgespec.hub.choice import choose
from edgespec.hub.download import Download
from edgespec.hub.files import HubFile, HubModel
from edgespec.hub.repository_cache import RepositoryCache
from edgespec.hub.translated_errors import HubFailure, translated_errors
from edgespec.ports import Progress
from edgespec.settings.hub_reference import HubReference
from edgespec.settings.units import format_size


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model that was fetched or found in the cache."""

    path: Path
    """The file to load; the first part of a split model."""
    model: HubModel
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub and its cache; the defaults come from the environment."""

    endpoint: str = field(default_factory=lambda: constants.ENDPOINT)
    cache: Path = field(default_factory=lambda: Path(constants.HF_HUB_CACHE))
    token: str | None = field(default_factory=get_token)
    offline: bool = field(default_factory=constants.is_offline_mode)

    def fetch(self, reference: HubReference, progress: Progress | None = None) -> Fetched:
        """The model's newest file, fetched if it is not in the cache.

        If the newest cannot be fetched, a model in the cache is used, with a note. Raises
        FetchError if the cache has none either, ModelError if the repository has no such model.
        """
        if self.offline:
            return self._from_cache(reference, "HF_HUB_OFFLINE is set")
        try:
            with translated_errors(reference, self.endpoint, self.cache):
                return self._newest(reference, progress)
        except HubFailure as failure:
            try:
                return self._from_cache(reference, failure.reason)
            except (FetchError, ModelError):
                raise failure from failure.__cause__

    def _newest(self, reference: HubReference, progress: Progress | None) -> Fetched:
        listed = listing.ask(self.endpoint, self.token, reference.repo)
        model = choose(reference, listed.files)
        cache = RepositoryCache(self.cache, reference.repo)
        downloads = [
            Download(
                name=file.name,
                url=hf_hub_url(
                    reference.repo, file.name, revision=listed.commit, endpoint=self.endpoint
                ),
                headers={"Authorization": f"Bearer {self.token}"} if self.token else {},
                size_bytes=file.size_bytes,
                destination=cache.blob(listed.checksum(file.name)),
            )
            for file in model.files
        ]
        missing = [one for one in downloads if not one.destination.exists()]
        total_bytes = sum(one.size_bytes for one in missing)
        self._check_room(reference, total_bytes - sum(one.here_bytes for one in missing))

        def report(doing: str = "fetching") -> None:
            if progress is not None:
                share = sum(one.here_bytes for one in missing) / max(total_bytes, 1)
                progress(f"{doing} {reference} ({format_size(total_bytes)})", share)

        for one in missing:
            waiting = partial(report, "waiting for another process that fetches")
            with cache.locked(one.destination.name, waiting):
                if not one.destination.exists():
                    one.run(report)
        paths = [cache.place(listed.commit, one.name, one.destination.name) for one in downloads]
        cache.set_newest(listed.commit)
        return Fetched(paths[0], model)

    def _check_room(self, reference: HubReference, n_bytes: int) -> None:
        folder = self.cache
        while not folder.exists():
            folder = folder.parent
        free_bytes = shutil.disk_usage(folder).free
        if n_bytes > free_bytes:
            raise HubFailure(
                f"{reference} needs {format_size(n_bytes)} in {self.cache}, where "
                f"{format_size(free_bytes)} are free",
                "free some space, or set HF_HOME to a folder on a larger disk",
            )

    def _from_cache(self, reference: HubReference, reason: str) -> Fetched:
        """The model that an earlier `fetch` or another program left in the cache. Raises
        FetchError."""
        paths = RepositoryCache(self.cache, reference.repo).newest()
        if not paths:
            raise FetchError(
                f"{reference} is not in {self.cache}, and {reason}: fetch it when you are online"
            )
        model = choose(reference, [HubFile(name, p.stat().st_size) for name, p in paths.items()])
        note = f"{reference}: {reason}; the model in the cache is used"
        return Fetched(paths[model.files[0].name], model, (note,))
