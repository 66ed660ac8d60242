"""Fetches a model from the hub, or finds it in the cache when the hub does not serve.

The cache is huggingface_hub's own, which other programs share: HF_HOME, HF_TOKEN, HF_ENDPOINT and
HF_HUB_OFFLINE mean what they mean to all its tools. A hub may be hostile, or the server may not be
a hub, and names and checksums become paths on disk.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import httpx2
from huggingface_hub import HfApi, constants, get_token, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

from edgespec.errors import FetchError, ModelError
from edgespec.files import gguf_names
from edgespec.hub.choice import HubFile, HubModel, choose
from edgespec.hub.repository import TIMEOUT_S, HubFailure, Repository
from edgespec.ports import Progress
from edgespec.settings.hub_reference import HubReference
from edgespec.settings.units import format_size

MAX_NAME_LENGTH = 1024
"""Longest accepted path of a file in a repository."""
_DIGITS = re.compile("[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""Checksums by SHA-1, as of a commit, and by SHA-256."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model that was fetched or found in the cache."""

    path: Path
    """The file to load; the first part of a split model."""
    model: HubModel
    heads: tuple[HubFile, ...] = ()
    """The drafting heads in its repository, in the order in which they are tried."""
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
            return self._newest(reference, progress)
        except (HubFailure, httpx2.HTTPError, OSError) as error:
            reason, advice = self._explained(error, reference)
            try:
                return self._from_cache(reference, reason)
            except (FetchError, ModelError):
                raise FetchError(f"{reason}: {advice}") from error

    def _newest(self, reference: HubReference, progress: Progress | None) -> Fetched:
        commit, files = self._listed(reference.repo)
        model, repository = choose(reference, files), Repository.of(self.cache, reference.repo)
        for what, digits in (("commit", commit), *((one.name, one.digits) for one in model.files)):
            if not _DIGITS.fullmatch(digits):
                raise HubFailure(
                    f"{self.endpoint} gave no hexadecimal checksum of {reference.repo}'s {what}",
                    "nothing was fetched, since it could not be checked",
                )
        missing = [file for file in model.files if not repository.blob(file).exists()]
        total_bytes = sum(file.size_bytes for file in missing)
        self._check_room(reference, total_bytes - sum(map(repository.here_bytes, missing)))

        def report() -> None:
            if progress is not None:
                share = sum(map(repository.here_bytes, missing)) / max(total_bytes, 1)
                progress(f"fetching {reference} ({format_size(total_bytes)})", share)

        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        for file in missing:
            url = hf_hub_url(reference.repo, file.name, revision=commit, endpoint=self.endpoint)
            repository.fetch(file, url, headers, report)
        paths = [repository.place(commit, file) for file in model.files]
        repository.set_newest(commit)
        return Fetched(paths[0], model, _heads(files))

    def _listed(self, repo: str) -> tuple[str, list[HubFile]]:
        """The newest commit of a repository and its files, without names that lead out of it.

        Raises HubFailure for an invalid answer and for an environment without a way to the hub, and
        huggingface_hub's errors.
        """
        try:
            api = HfApi(endpoint=self.endpoint, token=self.token)
            info = api.model_info(repo, files_metadata=True, timeout=TIMEOUT_S)
            files = [
                HubFile(
                    one.rfilename,
                    int(one.size or 0),
                    str(one.lfs.sha256 if one.lfs else one.blob_id),
                )
                for one in info.siblings or ()
                if _is_inside(one.rfilename)
            ]
        except httpx2.HTTPError:
            raise
        except (ImportError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise HubFailure(
                f"{self.endpoint} gave no listing of {repo} ({error})",
                "open it in a browser, as the network may require a login, or change or unset the "
                "variables of proxies and certificates, such as ALL_PROXY and SSL_CERT_FILE",
            ) from error
        return str(info.sha), files

    def _check_room(self, reference: HubReference, n_bytes: int) -> None:
        folder = next(one for one in (self.cache, *self.cache.parents) if one.exists())
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
        paths = Repository.of(self.cache, reference.repo).newest()
        if not paths:
            raise FetchError(
                f"{reference} is not in {self.cache}, and {reason}: fetch it when you are online"
            )
        model = choose(reference, paths)
        note = f"{reference}: {reason}; the model in the cache is used"
        return Fetched(paths[model.files[0]], model, _heads(paths), (note,))

    def _explained(self, error: Exception, reference: HubReference) -> tuple[str, str]:
        """The reason of an error, and what to do."""
        repo, hub = reference.repo, self.endpoint
        match error:
            case HubFailure():
                reason, advice = error.args
            case RepositoryNotFoundError():
                reason = f"{hub} has no model {repo}, or it is private or gated"
                advice = f"check the name, accept its terms at {hub}/{repo}, and set HF_TOKEN"
            case HfHubHTTPError():
                reason = f"{hub} answered {error.response.status_code} for {repo}"
                advice = "try again later; the part that was fetched is kept"
            case httpx2.HTTPError():
                reason = f"the connection to {hub} failed ({str(error) or type(error).__name__})"
                advice = "run the command again when you are online, it resumes where it stopped"
            case _:
                why = getattr(error, "strerror", None) or str(error)
                reason = f"{reference} cannot be stored in {self.cache} ({why})"
                advice = "free some space or set HF_HOME to another folder, and run it again"
        return reason, advice


def _heads(files: Iterable[HubFile]) -> tuple[HubFile, ...]:
    by_name = {file.name: file for file in files}
    sizes = {name: file.size_bytes for name, file in by_name.items()}
    return tuple(by_name[name] for name in gguf_names.heads(sizes))


def _is_inside(name: str) -> bool:
    """True if `name` is a relative path that stays inside a folder on every system."""
    path = PurePosixPath(name)
    is_plain = str(path) == name and not {"\\", ":"} & set(name) and name.isprintable()
    return is_plain and len(name) <= MAX_NAME_LENGTH and not {"..", "/"} & set(path.parts)
