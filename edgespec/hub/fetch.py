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
from huggingface_hub import HfApi, constants, get_session, get_token, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling

from edgespec.errors import FetchError, ModelError, UsageError
from edgespec.files import gguf_names
from edgespec.hub.choice import HubFile, HubModel, choose
from edgespec.hub.download import TIMEOUT_S, Download, HubFailure
from edgespec.hub.repository_cache import RepositoryCache
from edgespec.ports import Progress
from edgespec.settings.hub_reference import HubReference
from edgespec.settings.units import format_size

MAX_NAME_LENGTH = 1024
"""Longest accepted path of a file in a repository."""
_SHA1_DIGITS, _SHA256_DIGITS = 40, 64


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
        except HFValidationError as error:
            raise UsageError(f"{reference.repo!r} names no repository: {error}") from error
        except (HubFailure, httpx2.HTTPError, OSError) as error:
            reason, advice = self._explained(error, reference)
            try:
                return self._from_cache(reference, reason)
            except (FetchError, ModelError):
                raise FetchError(f"{reason}: {advice}") from error

    def _newest(self, reference: HubReference, progress: Progress | None) -> Fetched:
        repo = reference.repo
        commit, files = self._listed(repo)
        model, cache = choose(reference, files), RepositoryCache(self.cache, repo)
        if unsure := [file.name for file in model.files if not file.digits]:
            raise self._unsure(f"checksum of {unsure[0]}")
        downloads = [
            Download(
                name=file.name,
                url=hf_hub_url(repo, file.name, revision=commit, endpoint=self.endpoint),
                headers={"Authorization": f"Bearer {self.token}"} if self.token else {},
                size_bytes=file.size_bytes,
                destination=cache.blob(file.digits),
            )
            for file in model.files
        ]
        missing = [one for one in downloads if not one.destination.exists()]
        total_bytes = sum(one.size_bytes for one in missing)
        self._check_room(reference, total_bytes - sum(one.here_bytes for one in missing))

        def report() -> None:
            if progress is not None:
                share = sum(one.here_bytes for one in missing) / max(total_bytes, 1)
                progress(f"fetching {reference} ({format_size(total_bytes)})", share)

        for one in missing:
            with cache.lock(one.destination.name):
                if not one.destination.exists():
                    one.run(report)
        paths = [cache.place(commit, one.name, one.destination.name) for one in downloads]
        cache.set_newest(commit)
        return Fetched(paths[0], model, _heads(files))

    def _listed(self, repo: str) -> tuple[str, list[HubFile]]:
        """The newest commit of a repository and its files, without names that lead out of it.

        Raises HubFailure for an invalid answer and for an environment without a way to the hub, and
        huggingface_hub's errors.
        """
        try:
            get_session()
        except (ImportError, OSError, ValueError) as error:
            raise HubFailure(
                f"the environment lets no connection be made ({error})",
                "change or unset its variables of proxies and certificates, such as ALL_PROXY and "
                "SSL_CERT_FILE",
            ) from error
        try:
            api = HfApi(endpoint=self.endpoint, token=self.token)
            info = api.model_info(repo, files_metadata=True, timeout=TIMEOUT_S)
        except HFValidationError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise HubFailure(
                f"{self.endpoint} answered for {repo} with something else than a listing",
                "open it in a browser: the network may require a login",
            ) from error
        if not (commit := _hexadecimal(info.sha, _SHA1_DIGITS)):
            raise self._unsure(f"commit of {repo}, which has {_SHA1_DIGITS}")
        return commit, [_file(one) for one in info.siblings or () if _is_inside(one.rfilename)]

    def _unsure(self, what: str) -> HubFailure:
        return HubFailure(
            f"{self.endpoint} gave no hexadecimal digits as the {what}",
            "nothing was fetched, since it could not be checked",
        )

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
        paths = RepositoryCache(self.cache, reference.repo).newest()
        if not paths:
            raise FetchError(
                f"{reference} is not in {self.cache}, and {reason}: fetch it when you are online"
            )
        files = [HubFile(name, path.stat().st_size) for name, path in paths.items()]
        model = choose(reference, files)
        note = f"{reference}: {reason}; the model in the cache is used"
        return Fetched(paths[model.files[0].name], model, _heads(files), (note,))

    def _explained(self, error: Exception, reference: HubReference) -> tuple[str, str]:
        """The reason of an error, and what to do."""
        repo, hub = reference.repo, self.endpoint
        if isinstance(error, HubFailure):
            return error.reason, error.advice
        if isinstance(error, GatedRepoError):
            advice = f"accept its terms at {hub}/{repo} and set HF_TOKEN to a token of that account"
            return f"{repo} is gated", advice
        if isinstance(error, RepositoryNotFoundError):
            advice = "check the name, and set HF_TOKEN for a private model"
            return f"{hub} has no model {repo}, or it is private", advice
        if isinstance(error, HfHubHTTPError):
            advice = "try again later; the part that was fetched is kept"
            return f"{hub} answered {error.response.status_code} for {repo}", advice
        if isinstance(error, httpx2.HTTPError):
            reason = str(error) or type(error).__name__
            advice = "run the command again when you are online, it resumes where it stopped"
            return f"the connection to {hub} failed ({reason})", advice
        reason = getattr(error, "strerror", None) or str(error)
        advice = "free some space, or let HF_HOME name another folder, and run the command again"
        return f"{reference} cannot be stored in {self.cache} ({reason})", advice


def _heads(files: Iterable[HubFile]) -> tuple[HubFile, ...]:
    by_name = {file.name: file for file in files}
    sizes = {name: file.size_bytes for name, file in by_name.items()}
    return tuple(by_name[name] for name in gguf_names.heads(sizes))


def _is_inside(name: object) -> bool:
    """True if `name` is a relative path that stays inside a folder on every system."""
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        return False
    path = PurePosixPath(name)
    is_plain = str(path) == name and not {"\\", ":"} & set(name)
    return is_plain and not path.is_absolute() and ".." not in path.parts


def _file(listed: RepoSibling) -> HubFile:
    size = listed.size if isinstance(listed.size, int) and listed.size > 0 else 0
    digits = listed.lfs.sha256 if listed.lfs else listed.blob_id
    n_digits = _SHA256_DIGITS if listed.lfs else _SHA1_DIGITS
    return HubFile(listed.rfilename, size, _hexadecimal(digits, n_digits))


def _hexadecimal(answered: object, n_digits: int) -> str:
    """The digits in lower case; empty if they are not as many hexadecimal ones."""
    digits = str(answered).lower()
    return digits if re.fullmatch(rf"[0-9a-f]{{{n_digits}}}", digits, re.ASCII) else ""
