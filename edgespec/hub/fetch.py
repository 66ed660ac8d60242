"""Fetches a model from the hub, or finds it in the cache when the hub does not serve.

The cache is huggingface_hub's own, which other programs share: HF_HOME, HF_TOKEN, HF_ENDPOINT and
HF_HUB_OFFLINE mean what they mean to all its tools. Its own download begins anew after a failure or
Ctrl-C; here a file is resumed where an earlier attempt stopped. A hub may be hostile, or the server
may not be a hub, and names and checksums become paths on disk:

    models--USER--REPO/blobs/CHECKSUM
    models--USER--REPO/snapshots/COMMIT/NAME    a link to a blob
    models--USER--REPO/refs/main                the newest commit
    .locks/models--USER--REPO/CHECKSUM.lock     held by the process that fetches it
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path, PurePosixPath

import httpx2
from huggingface_hub import HfApi, constants, get_session, get_token, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import WeakFileLock, hf_raise_for_status  # type: ignore[attr-defined]

from edgespec.errors import FetchError, ModelError
from edgespec.files.unfinished import unfinished_file
from edgespec.hub.choice import HubFile, HubModel, choose, gguf_models, onnx_models
from edgespec.ports import Progress
from edgespec.settings.hub_reference import HubReference
from edgespec.settings.units import format_size

_DIGITS = re.compile("[0-9a-f]{40}(?:[0-9a-f]{24})?")
"""Checksums by SHA-1, as of a commit, and by SHA-256."""
_PART = ".edgespec.incomplete"
"""Suffix of the bytes fetched so far, which are kept when fetching fails."""
TIMEOUT_S = 20.0
MAX_FAILURES = 5
"""Consecutive failures without progress before giving up."""
PAUSE_S = 1.0
"""Seconds to wait after the first failure, doubled after each consecutive one."""
_PASSING = {None, 408, 429, *range(500, 600)}
"""Answers after which a retry may succeed; None: no answer."""


class HubFailure(Exception):
    """The newest files could not be fetched; its arguments are the reason and what to do."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model that was fetched or found in the cache."""

    path: Path
    """The file to load; the first part of a split model."""
    model: HubModel
    files: tuple[HubFile, ...]
    """All files of its repository."""
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
            return self._newest(reference, progress or (lambda what, share: None))
        except (HubFailure, httpx2.HTTPError, OSError) as error:
            reason, advice = self._explained(error, reference)
            try:
                return self._from_cache(reference, reason)
            except (FetchError, ModelError):
                raise FetchError(f"{reason}: {advice}") from error

    def models(self) -> Iterator[tuple[HubReference, HubModel, list[Path]]]:
        """The models in the cache: how -hf names each, and its files, the one to load first."""
        for folder in sorted(self.cache.glob("models--*--*")):
            repo, paths = folder.name.removeprefix("models--").replace("--", "/"), _cached(folder)
            for model in (*gguf_models(paths), *onnx_models([*paths])):
                yield HubReference(repo, model.quant), model, [paths[file] for file in model.files]

    def _folder(self, repo: str) -> Path:
        return self.cache / f"models--{repo.replace('/', '--')}"

    def _newest(self, reference: HubReference, progress: Progress) -> Fetched:
        commit, files = self._listed(reference.repo)
        model, folder = choose(reference, files), self._folder(reference.repo)
        blobs = {file: folder / "blobs" / file.digits for file in files}
        snapshot, newest = folder / "snapshots" / commit, folder / "refs" / "main"
        missing = {
            file: blobs[file]
            for file in model.files
            if not (blobs[file].exists() or (snapshot / file.name).exists())
        }
        total_bytes = sum(file.size_bytes for file in missing)

        def here_bytes() -> int:
            tried = (path for one in missing.values() for path in (one, one.with_suffix(_PART)))
            return sum(path.stat().st_size for path in tried if path.exists())

        def report() -> None:
            share = here_bytes() / max(total_bytes, 1)
            progress(f"fetching {reference} ({format_size(total_bytes)})", share)

        there = next(one for one in (self.cache, *self.cache.parents) if one.exists())
        free_bytes, needed_bytes = shutil.disk_usage(there).free, total_bytes - here_bytes()
        if needed_bytes > free_bytes:
            raise HubFailure(
                f"{reference} needs {format_size(needed_bytes)} in {self.cache}, where "
                f"{format_size(free_bytes)} are free",
                "free some space, or set HF_HOME to a folder on a larger disk",
            )
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        for file, blob in missing.items():
            url = hf_hub_url(reference.repo, file.name, revision=commit, endpoint=self.endpoint)
            _fetch(file, blob, url, headers, report)
        for file in (file for file in files if blobs[file].exists()):  # earlier commits' too
            _link(snapshot / file.name, blobs[file])
        newest.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_file(newest) as out:  # what offline use finds
            out.write(commit.encode())
        return Fetched(snapshot / model.files[0].name, model, tuple(files))

    def _listed(self, repo: str) -> tuple[str, list[HubFile]]:
        """The newest commit of a repository and its files, without names that lead out of it.

        Raises HubFailure for an invalid answer and for an environment without a way to the hub, and
        huggingface_hub's errors.
        """
        try:
            api = HfApi(endpoint=self.endpoint, token=self.token)
            info = api.model_info(repo, files_metadata=True, timeout=TIMEOUT_S)
            files = [
                HubFile(name, int(one.size or 0), str(one.lfs.sha256 if one.lfs else one.blob_id))
                for one in info.siblings or ()
                if _is_inside(name := one.rfilename)
            ]
        except httpx2.HTTPError:
            raise
        except (ImportError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise HubFailure(
                f"{self.endpoint} gave no listing of {repo} ({error})",
                "open it in a browser, as the network may require a login, or change or unset the "
                "variables of proxies and certificates, such as ALL_PROXY and SSL_CERT_FILE",
            ) from error
        commit = str(info.sha)
        for what, digits in (("commit", commit), *((one.name, one.digits) for one in files)):
            if not _DIGITS.fullmatch(digits):
                raise HubFailure(
                    f"{self.endpoint} gave no hexadecimal checksum of {repo}'s {what}",
                    "nothing was fetched, since it could not be checked",
                )
        return commit, files

    def _from_cache(self, reference: HubReference, reason: str) -> Fetched:
        """The model that an earlier `fetch` or another program left in the cache. Raises
        FetchError."""
        paths = _cached(self._folder(reference.repo))
        if not paths:
            raise FetchError(
                f"{reference} is not in {self.cache}, and {reason}: fetch it when you are online"
            )
        model = choose(reference, paths)
        note = f"{reference}: {reason}; the model in the cache is used"
        return Fetched(paths[model.files[0]], model, tuple(paths), (note,))

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


def _is_inside(name: str) -> bool:
    """True if `name` is a relative path that stays inside a folder on every system."""
    path = PurePosixPath(name)
    is_plain = str(path) == name and not {"\\", ":"} & set(name) and name.isprintable()
    return is_plain and not {"..", "/"} & set(path.parts)


def _cached(folder: Path) -> dict[HubFile, Path]:
    """The cached files of a repository's newest commit; empty if nothing was fetched."""
    newest = folder / "refs" / "main"
    revision = newest.read_text("utf-8", "replace").strip() if newest.is_file() else ""
    snapshot = folder / "snapshots" / revision
    return {
        HubFile(path.relative_to(snapshot).as_posix(), path.stat().st_size): path
        for path in snapshot.rglob("*")
        if revision and path.is_file()
    }


def _link(path: Path, blob: Path) -> None:
    """Let a path of a commit have its content, unless another process was faster."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        try:  # a relative link, so that the cache can be moved
            path.symlink_to(os.path.relpath(blob, path.parent))
        except FileExistsError:
            raise
        except (OSError, NotImplementedError):  # forbidden, as on Windows
            try:
                path.hardlink_to(blob)
            except OSError:  # exFAT has no links: as huggingface_hub does there
                blob.replace(path)


def _fetch(
    file: HubFile, blob: Path, url: str, headers: Mapping[str, str], report: Callable[[], None]
) -> None:
    """Fetch the missing bytes of a file, or wait for another process that does; `report` is called
    when more has come.

    Raises HubFailure for a wrong checksum, since the file may have changed between two requests,
    and the transport's or the hub's error after too many failures.
    """
    part, (_, repo, cache) = blob.with_suffix(_PART), [*blob.parents][:3]
    lock = cache / ".locks" / repo.name / f"{blob.name}.lock"
    for path in (blob, lock):
        path.parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if blob.exists():
            return
        with part.open("ab", buffering=0) as out:
            _complete(out, file.size_bytes, url, headers, report)
        digest = hashlib.sha256()
        if len(file.digits) != 2 * digest.digest_size:
            digest = hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
        with part.open("rb") as content:
            digits = hashlib.file_digest(content, lambda: digest).hexdigest()
        if digits != file.digits:
            part.unlink()
            raise HubFailure(
                f"{file.name} came damaged (its SHA is {digits[:12]}..., not {file.digits[:12]}..."
                ") and was deleted",
                "fetch it again",
            )
        part.replace(blob)


def _complete(
    out: RawIOBase, n_bytes: int, url: str, headers: Mapping[str, str], report: Callable[[], None]
) -> None:
    """Append what is missing of `n_bytes`, in as many requests as that takes."""
    failures = 0
    while (done := out.tell()) < n_bytes:
        wanted = {**headers, "Accept-Encoding": "identity", "Range": f"bytes={done}-"}
        try:
            with get_session().stream(
                "GET", url, headers=wanted, timeout=TIMEOUT_S, follow_redirects=True
            ) as response:
                hf_raise_for_status(response)
                if response.status_code != httpx2.codes.PARTIAL_CONTENT:
                    out.truncate(out.seek(0))  # the server sends the whole file
                for chunk in response.iter_raw():
                    out.write(chunk)
                    report()
                    if out.tell() > n_bytes:
                        return
            if out.tell() <= done:
                raise httpx2.ReadError("nothing came")
        except (httpx2.TransportError, HfHubHTTPError) as error:
            failures = 0 if out.tell() > done else failures + 1
            answer = getattr(getattr(error, "response", None), "status_code", None)
            if failures > MAX_FAILURES or answer not in _PASSING:
                raise
            time.sleep(PAUSE_S * 2 ** max(0, failures - 1))
