"""The cache that Hugging Face's tools share, for one repository: contents by their checksums,
commits that name them, and locks. Knows no hub.

    models--USER--REPO/blobs/CHECKSUM
    models--USER--REPO/snapshots/COMMIT/NAME    a link to a blob
    models--USER--REPO/refs/main                the newest commit
    .locks/models--USER--REPO/CHECKSUM.lock     held by whoever fetches it
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from huggingface_hub.file_download import repo_folder_name

from edgespec.files.unfinished import unfinished_file

BRANCH = "main"
POLL_S = 0.25
"""Between two looks at a lock that another process holds."""


@dataclass(frozen=True, slots=True)
class RepositoryCache:
    """What is here of one repository."""

    cache: Path
    repo: str

    @property
    def _name(self) -> str:
        return repo_folder_name(repo_id=self.repo, repo_type="model")

    @property
    def folder(self) -> Path:
        return self.cache / self._name

    def blob(self, digits: str) -> Path:
        """The place of a content, by its checksum."""
        return self.folder / "blobs" / digits

    @contextmanager
    def locked(self, digits: str, waiting: Callable[[], None]) -> Iterator[None]:
        """Nobody else fetches this content while the block runs; `waiting` is called now and then
        while another process does."""
        path = self.cache / ".locks" / self._name / f"{digits}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, timeout=POLL_S, mode=0o664)
        with ExitStack() as held:
            while not lock.is_locked:
                try:
                    held.enter_context(lock)
                except Timeout:
                    waiting()
                except NotImplementedError:  # a file system without locks
                    break
            yield

    def place(self, commit: str, name: str, digits: str) -> Path:
        """The path of a file at a commit, which is there from now on and leads to its blob."""
        path, blob = self.folder / "snapshots" / commit / name, self.blob(digits)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or not path.samefile(blob):
            part = path.with_name(f".{secrets.token_hex(8)}")
            _link(part, blob)
            part.replace(path)
        return path

    def set_newest(self, commit: str) -> None:
        """What the cache holds of `commit` is what offline use finds."""
        path = self.folder / "refs" / BRANCH
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != commit:
            with unfinished_file(path, alone=False) as file:
                file.write(commit.encode())

    def newest(self) -> dict[str, Path]:
        """The files of the newest commit, by name; none where nothing was fetched."""
        newest = self.folder / "refs" / BRANCH
        revision = newest.read_text().strip() if newest.exists() else ""
        snapshot = self.folder / "snapshots" / revision
        return {
            path.relative_to(snapshot).as_posix(): path
            for path in snapshot.rglob("*")
            if revision and path.is_file()
        }


def _link(path: Path, blob: Path) -> None:
    """Relative, so that the cache can be moved; Windows lets few people make symbolic links."""
    with suppress(OSError, NotImplementedError):
        path.symlink_to(os.path.relpath(blob, path.parent))
        return
    path.hardlink_to(blob)
