"""The installed version, what other packages add, and what to install for optional parts.

Knows names of packages and extras, not their uses.
"""

from __future__ import annotations

import functools
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.metadata import EntryPoints, PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from edgespec.concurrency.own_processes import is_frozen
from edgespec.errors import UsageError


def install_command(extra: str) -> str:
    """A command line that installs an extra beside this edgespec, from where it came."""
    # a frozen application cannot be added to: the command is for where it is made
    python = "python" if is_frozen() else _shortest(Path(sys.executable))
    return shlex.join([python, "-m", "pip", "install", *_source(extra)])


def installed_version() -> str:
    """edgespec's own version."""
    try:
        return version("edgespec")
    except PackageNotFoundError:  # a checkout on the path, never installed
        return "unknown"


@contextmanager
def needed(extra: str, why: str) -> Iterator[None]:
    """Context manager for imports of an extra's packages. Raises UsageError with the command that
    installs them."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f"{why} ({error}): {install_command(extra)}") from error


def find(package: str, extra: str, why: str) -> None:
    """Refuse a missing package of an extra without importing it, which takes memory. Raises
    UsageError with the command that installs it."""
    with needed(extra, why):
        try:
            is_installed = find_spec(package) is not None
        except ValueError:  # a module without a spec, or None in its place
            is_installed = False
        if not is_installed:
            raise ModuleNotFoundError(f"No module named {package!r}")


@functools.cache
def entry_points(group: str) -> EntryPoints:
    """Everything that installed packages declare in a group. Looked up once per process, since all
    packages are asked."""
    return metadata.entry_points(group=group)


def added(group: str) -> dict[str, Any]:
    """Objects that other packages add to a group, by name in its order. Raises UsageError for one
    that cannot be imported."""
    found: dict[str, Any] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        try:
            found[entry.name] = entry.load()
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"'{entry.name}' of {group} cannot be imported ({error}): repair or remove the "
                "package that adds it"
            ) from error
    return found


def _source(extra: str) -> list[str]:
    """Argument for pip: the clone that runs, the file or address that was installed, or the name in
    a package index."""
    clone = Path(__file__).parents[1]
    if (clone / "pyproject.toml").is_file():
        return ["-e", f"{_shortest(clone)}[{extra}]"]
    try:
        origin = json.loads(distribution("edgespec").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    vcs = origin.get("vcs_info", {}).get("vcs")
    address = f" @ {f'{vcs}+' if vcs else ''}{origin['url']}" if "url" in origin else ""
    return [f"edgespec[{extra}]{address}"]


def _shortest(path: Path) -> str:
    """The path relative to the working directory if it lies below it."""
    folder = Path.cwd()
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
