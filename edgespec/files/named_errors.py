"""Errors of files as the user named them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
        raise kind(f"{what}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise kind(f"{what}: not UTF-8 at byte {error.start}: convert it first") from error
