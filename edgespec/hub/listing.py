"""Gets and validates a hub's listing of a repository.

A hub may be hostile, or the server may not be a hub, and names and checksums become paths on disk.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from huggingface_hub import HfApi, get_session
from huggingface_hub.errors import HFValidationError
from huggingface_hub.hf_api import RepoSibling

from edgespec.hub.files import HubFile
from edgespec.hub.translated_errors import HubFailure

TIMEOUT_S = 20.0
MAX_NAME_LENGTH = 1024
"""Longest accepted path of a file in a repository."""

_ABOUT_CONNECTIONS = {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"}
_HEXADECIMAL = re.compile(r"[0-9a-f]+", re.ASCII)
_SHA1_DIGITS, SHA256_DIGITS = 40, 64


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit."""

    endpoint: str
    commit: str
    siblings: Mapping[str, RepoSibling]
    """The hub's entries by name, without names that lead out of the repository."""

    @property
    def files(self) -> list[HubFile]:
        return [HubFile(name, _size(file)) for name, file in self.siblings.items()]

    def checksum(self, name: str) -> str:
        """Hexadecimal SHA-256, or for small files the SHA-1 of the Git blob with its header.

        Raises HubFailure if the hub's value is invalid.
        """
        file = self.siblings[name]
        digits = file.lfs.sha256 if file.lfs else file.blob_id
        n_digits = SHA256_DIGITS if file.lfs else _SHA1_DIGITS
        return _sha(digits, n_digits, self.endpoint, f"checksum of {name}")


def ask(endpoint: str, token: str | None, repo: str) -> Listing:
    """The hub's listing of a repository at its newest commit.

    Raises HubFailure for an invalid answer and for an environment without a way to the hub, and
    huggingface_hub's errors.
    """
    _check_environment(endpoint, token)
    try:
        info = HfApi(endpoint=endpoint, token=token).model_info(
            repo, files_metadata=True, timeout=TIMEOUT_S
        )
    except HFValidationError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise HubFailure(
            f"{endpoint} answered for {repo} with something that is not a listing of a model",
            "open it in a browser: the network may require a login",
        ) from error
    commit = _sha(info.sha, _SHA1_DIGITS, endpoint, f"commit of {repo}")
    files = {file.rfilename: file for file in info.siblings or () if _is_inside(file.rfilename)}
    return Listing(endpoint, commit, files)


def _check_environment(endpoint: str, token: str | None) -> None:
    if not endpoint.startswith(("http://", "https://")):
        raise HubFailure(
            f"HF_ENDPOINT is {endpoint}, which is no address",
            "let it begin with https:// or http://",
        )
    if token and not token.isascii():
        raise HubFailure(
            "the token has letters that no token has", "set HF_TOKEN, or log in, once more"
        )
    try:
        get_session()
    except (ImportError, OSError, ValueError) as error:
        given = ", ".join(name for name in os.environ if name.upper() in _ABOUT_CONNECTIONS)
        raise HubFailure(
            f"the environment lets no connection be made ({error})", f"change or unset {given}"
        ) from error


def _is_inside(name: object) -> bool:
    """True if `name` is a relative path that stays inside a folder on every system."""
    if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH or not name.isprintable():
        return False
    if {"\\", ":"} & set(name):
        return False
    path = PurePosixPath(name)
    return str(path) == name and not path.is_absolute() and ".." not in path.parts


def _size(file: RepoSibling) -> int:
    return file.size if isinstance(file.size, int) and file.size > 0 else 0


def _sha(answered: object, n_digits: int, endpoint: str, what: str) -> str:
    """The digits in lower case. Raises HubFailure unless there are `n_digits` hexadecimal ones."""
    digits = str(answered).lower()
    if len(digits) != n_digits or not _HEXADECIMAL.fullmatch(digits):
        raise HubFailure(
            f"{endpoint} gave {digits[:80]!r} as the {what}, not {n_digits} hexadecimal digits",
            "nothing was fetched, since it could not be checked",
        )
    return digits
