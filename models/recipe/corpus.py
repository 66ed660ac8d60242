"""The corpus: the Python standard library's own source, split by whole modules.
Knows which files are used and how they are recorded, nothing of tokens or models."""

from __future__ import annotations

import hashlib
import json
import platform
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

EXCLUDED_PARTS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
# generated tables are long and not worth a model's capacity
EXCLUDED_PATTERNS = (
    "encodings/cp*.py",
    "encodings/iso8859_*.py",
    "encodings/mac_*.py",
    "encodings/koi8_*.py",
    "encodings/kz1048.py",
    "encodings/ptcp154.py",
    "encodings/tis_620.py",
    "encodings/hp_roman8.py",
    "encodings/palmos.py",
    "pydoc_data/*.py",
    "html/entities.py",
    "_sysconfigdata*.py",
)
HELD_OUT_MODULES = {
    "textwrap",
    "statistics",
    "shlex",
    "heapq",
    "fractions",
    "csv",
    "json",
    "bisect",
    "colorsys",
    "graphlib",
}


@dataclass(frozen=True)
class SourceFile:
    """One file of the corpus, with its path relative to the standard library's root."""

    path: str
    split: str  # "train" or "held_out"
    size_bytes: int
    sha256: str


def standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def list_sources(root: Path) -> list[SourceFile]:
    """Every usable module under `root`, in path order, assigned to its split."""
    sources = []
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if EXCLUDED_PARTS & set(path.parts) or any(map(path.match, EXCLUDED_PATTERNS)):
            continue
        data = file.read_bytes()
        if not data.strip() or not is_utf8(data):
            continue
        module = path.parts[0].removesuffix(".py")
        split = "held_out" if module in HELD_OUT_MODULES else "train"
        digest = hashlib.sha256(data).hexdigest()
        sources.append(SourceFile(path.as_posix(), split, len(data), digest))
    return sources


def is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def write_manifest(sources: list[SourceFile], file: Path) -> None:
    """Record the corpus as JSON, one source file per line."""
    rows = ",\n".join("    " + json.dumps(asdict(source)) for source in sources)
    version = platform.python_version()
    file.write_text(f'{{\n  "python": "{version}",\n  "files": [\n{rows}\n  ]\n}}\n')


def read_documents(root: Path, sources: list[SourceFile], split: str) -> list[str]:
    r"""The texts of one split, in the manifest's order, with line ends as `\n`."""
    return [
        (root / source.path).read_text(encoding="utf-8")
        for source in sources
        if source.split == split
    ]
