"""One repository in the cache shared by Hugging Face's tools: blobs, snapshots and locks.

Knows no hub. Layout of the cache:

    models--USER--REPO/blobs/CHECKSUM
    models--USER--REPO/snapshots/COMMIT/NAME    a link to a blob
    models--USER--REPO/refs/main                the newest commit
    .locks/models--USER--REPO/CHECKSUM.lock     held by the process that fetches it
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

from edgespec.files.unfinished import unfinished_file
from edgespec.hub import choice
from edgespec.hub.choice import HubFile, HubModel
from edgespec.settings.hub_reference import HubReference

BRANCH = "main"


@dataclass(frozen=True, slots=True)
class RepositoryCache:
    """The cached part of one repository."""

    cache: Path
    repo: str

    @property
    def folder(self) -> Path:
        return self.cache / f"models--{self.repo.replace('/', '--')}"

    def blob(self, digits: str) -> Path:
        """Path of the blob with this checksum."""
        return self.folder / "blobs" / digits

    def lock(self, digits: str) -> AbstractContextManager[object]:
        """The lock of a blob, which the process that fetches it holds."""
        path = self.cache / ".locks" / self.folder.name / f"{digits}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        return WeakFileLock(path)

    def place(self, commit: str, name: str, digits: str) -> Path:
        """Link a file of a commit to its blob and return the path of the link."""
        path, blob = self.folder / "snapshots" / commit / name, self.blob(digits)
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

    def set_newest(self, commit: str) -> None:
        """Record `commit` as the newest, which offline use finds."""
        path = self.folder / "refs" / BRANCH
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_file(path) as file:
            file.write(commit.encode())

    def newest(self) -> dict[str, Path]:
        """The files of the newest commit, by name; empty if nothing was fetched."""
        newest = self.folder / "refs" / BRANCH
        revision = newest.read_text(encoding="utf-8").strip() if newest.exists() else ""
        snapshot = self.folder / "snapshots" / revision
        return {
            path.relative_to(snapshot).as_posix(): path
            for path in snapshot.rglob("*")
            if revision and path.is_file()
        }


def models(cache: Path) -> Iterator[tuple[HubReference, HubModel, list[Path]]]:
    """The models in the cache: how -hf names each, and its files, the one to load first."""
    for folder in sorted(cache.glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/")
        paths = RepositoryCache(cache, repo).newest()
        files = [HubFile(name, path.stat().st_size) for name, path in paths.items()]
        for model in (*choice.gguf_models(files), *choice.onnx_models(files)):
            reference = HubReference(repo, model.quant)
            yield reference, model, [paths[file.name] for file in model.files]
