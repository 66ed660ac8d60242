"""Errors of files as the user named them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgespec.errors import EdgespecError, UsageError


@contextmanager
def named(what: str, kind: type[EdgespecError] = UsageError) -> Iterator[None]:
    """Context manager that raises errors of a file as `kind`, with `what` before the reason.

    A closed pipe stays an OSError.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise kind(f"{what}: not UTF-8 at byte {error.start}: convert it first") from error


def check_output(path: Path) -> None:
    """Raise UsageError for a path that cannot be written, before long work starts."""
    with named(f"{path} cannot be written"):
        is_folder = path.is_dir()
    if is_folder:
        raise UsageError(f"{path} cannot be written: it is a folder: name a file in it")
    if not path.parent.is_dir():
        raise UsageError(
            f"{path} cannot be written: there is no folder {path.parent}: make it, or name another "
            "file"
        )
