"""Checks that one package of onnxruntime is installed, since all of them write the same folder."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from edgespec.errors import EdgespecError

FOLDER = "onnxruntime"
PACKAGES = (
    FOLDER,
    *(f"{FOLDER}-{kind}" for kind in ("gpu", "openvino", "directml", "rocm", "qnn", "azure")),
)


def check_packages() -> None:
    """Raise EdgespecError if several packages of onnxruntime lie in one folder."""
    for folder, names in _installed().items():
        if len(names) > 1:
            raise EdgespecError(
                f"{' and '.join(names)} are both installed in {folder}, where they overwrite each "
                f"other: pip uninstall -y {' '.join(names)}, then pip install 'edgespec[onnx]' "
                "for GPUs and CPUs, or 'edgespec[onnx-cpu]' for CPUs alone"
            )


@cache
def _installed() -> dict[Path, list[str]]:
    """Names of the installed packages by the folder that they share."""
    found: dict[Path, list[str]] = {}
    for name in PACKAGES:
        try:
            folder = Path(str(distribution(name).locate_file(FOLDER)))
        except PackageNotFoundError:
            continue
        found.setdefault(folder, []).append(name)
    return found
