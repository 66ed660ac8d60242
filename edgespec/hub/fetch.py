"""Finds a model on the hub, or in the cache when there is no hub, and makes it a file here.

The cache is huggingface_hub's own, which other programs share: HF_HOME, HF_TOKEN, HF_ENDPOINT and
HF_HUB_OFFLINE mean what they mean everywhere.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, constants, get_token, hf_hub_download, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.hf_api import RepoSibling

from edgespec.errors import EdgespecError, FetchError, UsageError
from edgespec.hub.choice import HubFile, HubModel, choose
from edgespec.hub.download import TIMEOUT_S, Download
from edgespec.hub.reference import HubReference
from edgespec.ports import Progress
from edgespec.units import format_size

BRANCH = "main"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model that is here."""

    path: Path
    """The file to load: of a split model the first part."""
    model: HubModel
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hub:
    """A hub and the cache for it; by default what the environment says."""

    endpoint: str = field(default_factory=lambda: constants.ENDPOINT)
    cache: Path = field(default_factory=lambda: Path(constants.HF_HUB_CACHE))
    token: str | None = field(default_factory=get_token)
    offline: bool = field(default_factory=constants.is_offline_mode)

    def fetch(self, reference: HubReference, progress: Progress | None = None) -> Fetched:
        """The model's file, fetched if it is not in the cache or not the newest.

        Raises FetchError for whatever stands in the way, ModelError for a model that is not there.
        """
        if self.offline:
            return self._from_cache(reference, "HF_HUB_OFFLINE is set")
        with self._explained(reference):
            try:
                info = HfApi(endpoint=self.endpoint, token=self.token).model_info(
                    reference.repo, files_metadata=True, timeout=TIMEOUT_S
                )
            except httpx2.TransportError as error:
                return self._from_cache(reference, f"{self.endpoint} cannot be reached ({error})")
            files = {file.rfilename: file for file in info.siblings or ()}
            model = choose(reference, [HubFile(f.rfilename, f.size or 0) for f in files.values()])
            downloads = [self._download(reference, files[file.name]) for file in model.files]
            self._bring(reference, downloads, progress)
            paths = [self._place(reference, file.name) for file in model.files]
        return Fetched(paths[0], model)

    def _folder(self, reference: HubReference) -> Path:
        return self.cache / repo_folder_name(repo_id=reference.repo, repo_type="model")

    def _download(self, reference: HubReference, file: RepoSibling) -> Download:
        sha256 = file.lfs.sha256 if file.lfs else None
        blobs = self._folder(reference) / "blobs"
        name = sha256 or file.blob_id or file.rfilename.replace("/", "--")
        return Download(
            name=f"{reference.repo}/{file.rfilename}",
            url=hf_hub_url(reference.repo, file.rfilename, endpoint=self.endpoint),
            headers={"Authorization": f"Bearer {self.token}"} if self.token else {},
            size_bytes=file.size or 0,
            sha256=sha256,
            partial=blobs / f"{name}.edgespec.incomplete",
            destination=blobs / name,
        )

    def _bring(
        self, reference: HubReference, downloads: list[Download], progress: Progress | None
    ) -> None:
        """Fetch what is not in the cache, after a look at the room for it."""
        missing = [download for download in downloads if not download.destination.exists()]
        total_bytes = sum(download.size_bytes for download in missing)
        done_bytes = sum(download.partial_bytes for download in missing)
        self._check_room(reference, total_bytes - done_bytes)

        def report(n_bytes: int) -> None:
            nonlocal done_bytes
            done_bytes += n_bytes
            if progress is not None:
                what = f"fetching {reference} ({format_size(total_bytes)})"
                progress(what, done_bytes / max(total_bytes, 1))

        for download in missing:
            download.run(report)

    def _check_room(self, reference: HubReference, n_bytes: int) -> None:
        place = self.cache
        while not place.exists():
            place = place.parent
        free_bytes = shutil.disk_usage(place).free
        if n_bytes > free_bytes:
            raise FetchError(
                f"{reference} needs {format_size(n_bytes)} in {self.cache}, where "
                f"{format_size(free_bytes)} are free: free some, or set HF_HOME to a folder on a "
                "larger disk"
            )

    def _place(self, reference: HubReference, name: str) -> Path:
        """The file's path among those of its revision; huggingface_hub finds its content here."""
        path = hf_hub_download(
            reference.repo,
            name,
            cache_dir=self.cache,
            endpoint=self.endpoint,
            token=self.token or False,
        )
        return Path(path)

    def _from_cache(self, reference: HubReference, reason: str) -> Fetched:
        """What an earlier `fetch`, or another program, left. Raises FetchError."""
        folder = self._folder(reference)
        newest = folder / "refs" / BRANCH
        revision = newest.read_text().strip() if newest.exists() else ""
        snapshot = folder / "snapshots" / revision
        paths = {
            path.relative_to(snapshot).as_posix(): path
            for path in snapshot.rglob("*")
            if revision and path.is_file()
        }
        if not paths:
            raise FetchError(
                f"{reference} is not in {self.cache}, and {reason}: fetch it while there is a "
                "connection"
            )
        found = choose(reference, [HubFile(name, p.stat().st_size) for name, p in paths.items()])
        note = f"{reference}: {reason}; the model in the cache is used"
        return Fetched(paths[found.files[0].name], found, (note,))

    @contextmanager
    def _explained(self, reference: HubReference) -> Iterator[None]:
        """Errors of huggingface_hub, of the transport and of the disk, in our words."""
        try:
            yield
        except EdgespecError:
            raise
        except GatedRepoError as error:
            raise FetchError(
                f"{reference.repo} is gated: accept its terms at {self.endpoint}/{reference.repo} "
                "and set HF_TOKEN to a token of that account"
            ) from error
        except RepositoryNotFoundError as error:
            raise FetchError(
                f"{self.endpoint} has no model {reference.repo}, or it is private: check the "
                "name, and HF_TOKEN if it is yours"
            ) from error
        except HFValidationError as error:
            raise UsageError(f"{reference.repo!r} is no name of a repository: {error}") from error
        except OfflineModeIsEnabled as error:
            raise FetchError(f"{reference} was not fetched: HF_HUB_OFFLINE is set") from error
        except HfHubHTTPError as error:
            raise FetchError(
                f"{self.endpoint} answered {error.response.status_code} for {reference.repo}: "
                "try again later; what was fetched so far is kept"
            ) from error
        except httpx2.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise FetchError(
                f"the connection to {self.endpoint} broke ({reason}): run the command again, it "
                "goes on where it stopped"
            ) from error
        except OSError as error:
            raise FetchError(self._disk_failure(reference, error)) from error

    def _disk_failure(self, reference: HubReference, error: OSError) -> str:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            return (
                f"the disk of {self.cache} is full while {reference} is fetched: free some and "
                "run the command again, it goes on where it stopped"
            )
        return f"{reference} cannot be stored in {self.cache}: {error}"
