"""What a feature says where the packages of its extra are not installed.

Knows names of packages and extras; what is done with a package is its users' business.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from edgespec.errors import UsageError


@contextmanager
def needed(extra: str, why: str) -> Iterator[None]:
    """Around imports of what an extra installs. Raises UsageError with the command that does."""
    try:
        yield
    except ImportError as error:
        raise UsageError(f'{why} ({error}): pip install "edgespec[{extra}]"') from error


def find(package: str, extra: str, why: str) -> None:
    """The same refusal before a package is imported: importing takes memory."""
    with needed(extra, why):
        try:
            is_there = find_spec(package) is not None
        except ValueError:  # a module without a spec, or None in its place
            is_there = False
        if not is_there:
            raise ModuleNotFoundError(f"No module named {package!r}")
