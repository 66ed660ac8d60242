"""One repository in the cache that Hugging Face's tools share, and how a file gets into it.

huggingface_hub's own download begins anew after a failure, Ctrl-C or an answer 500; here a file is
resumed where an earlier attempt stopped. Layout of the cache:

    models--USER--REPO/blobs/CHECKSUM
    models--USER--REPO/snapshots/COMMIT/NAME    a link to a blob
    models--USER--REPO/refs/main                the newest commit
    .locks/models--USER--REPO/CHECKSUM.lock     held by the process that fetches it
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import RawIOBase
from pathlib import Path
from typing import Self

import httpx2
from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import WeakFileLock, hf_raise_for_status  # type: ignore[attr-defined]

from edgespec.files.unfinished import unfinished_file
from edgespec.hub import choice
from edgespec.hub.choice import HubFile, HubModel
from edgespec.settings.hub_reference import HubReference

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
class Repository:
    """The cached part of one repository."""

    folder: Path

    @classmethod
    def of(cls, cache: Path, repo: str) -> Self:
        return cls(cache / f"models--{repo.replace('/', '--')}")

    def blob(self, file: HubFile) -> Path:
        """Path of a file's content."""
        return self.folder / "blobs" / file.digits

    def _partial(self, file: HubFile) -> Path:
        """Path of the bytes fetched so far, which are kept when fetching fails."""
        return self.folder / "blobs" / f"{file.digits}.edgespec.incomplete"

    def here_bytes(self, file: HubFile) -> int:
        """Bytes of a file fetched so far."""
        if self.blob(file).exists():
            return file.size_bytes
        partial = self._partial(file)
        return partial.stat().st_size if partial.exists() else 0

    def fetch(
        self, file: HubFile, url: str, headers: Mapping[str, str], report: Callable[[], None]
    ) -> None:
        """Fetch the missing bytes of a file, or wait for another process that does; `report` is
        called when more has come.

        Raises HubFailure for a wrong checksum, and the transport's or the hub's error after
        too many failures.
        """
        blob, partial = self.blob(file), self._partial(file)
        lock = self.folder.parent / ".locks" / self.folder.name / f"{file.digits}.lock"
        for path in (blob, lock):
            path.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):
            if not blob.exists():
                with partial.open("ab", buffering=0) as out:
                    _complete(out, file.size_bytes, url, headers, report)
                _check(file, partial)
                partial.replace(blob)

    def place(self, commit: str, file: HubFile) -> Path:
        """Link a file of a commit to its content and return the path of the link."""
        path, blob = self.folder / "snapshots" / commit / file.name, self.blob(file)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or not path.samefile(blob):
            path.unlink(missing_ok=True)
            try:  # a relative link, so that the cache can be moved
                path.symlink_to(os.path.relpath(blob, path.parent))
            except FileExistsError:  # another process was faster
                pass
            except (OSError, NotImplementedError):  # forbidden, as on Windows
                path.hardlink_to(blob)
        return path

    @property
    def _newest(self) -> Path:
        return self.folder / "refs" / "main"

    def set_newest(self, commit: str) -> None:
        """Record `commit` as the newest, which offline use finds."""
        self._newest.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_file(self._newest) as file:
            file.write(commit.encode())

    def newest(self) -> dict[HubFile, Path]:
        """The cached files of the newest commit; empty if nothing was fetched."""
        revision = self._newest.read_text("utf-8").strip() if self._newest.exists() else ""
        snapshot = self.folder / "snapshots" / revision
        return {
            HubFile(path.relative_to(snapshot).as_posix(), path.stat().st_size): path
            for path in snapshot.rglob("*")
            if revision and path.is_file()
        }


def models(cache: Path) -> Iterator[tuple[HubReference, HubModel, list[Path]]]:
    """The models in the cache: how -hf names each, and its files, the one to load first."""
    for folder in sorted(cache.glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/")
        paths = Repository(folder).newest()
        for model in (*choice.gguf_models(paths), *choice.onnx_models([*paths])):
            yield HubReference(repo, model.quant), model, [paths[file] for file in model.files]


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
                    out.truncate(0)  # the server sends the whole file
                for chunk in response.iter_raw():
                    out.write(chunk)
                    report()
                    if out.tell() > n_bytes:
                        return
        except (httpx2.TransportError, HfHubHTTPError) as error:
            failures = 0 if out.tell() > done else failures + 1
            answer = getattr(getattr(error, "response", None), "status_code", None)
            if failures > MAX_FAILURES or answer not in _PASSING:
                raise
            time.sleep(PAUSE_S * 2 ** max(0, failures - 1))
        else:
            if out.tell() <= done:
                return


def _check(file: HubFile, partial: Path) -> None:
    """Raise HubFailure for a wrong checksum: the file may have changed between two requests."""
    digest = hashlib.sha256()
    if len(file.digits) != 2 * digest.digest_size:
        digest = hashlib.sha1(b"blob %d\0" % file.size_bytes, usedforsecurity=False)
    with partial.open("rb") as content:
        digits = hashlib.file_digest(content, lambda: digest).hexdigest()
    if digits != file.digits:
        partial.unlink()
        raise HubFailure(
            f"{file.name} came damaged (its SHA is {digits[:12]}..., not {file.digits[:12]}...) "
            "and was deleted",
            "fetch it again",
        )
