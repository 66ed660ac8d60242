"""Translates errors of the hub, the transport and the disk into HubFailure and UsageError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
)

from edgespec.errors import EdgespecError, FetchError, UsageError
from edgespec.settings.hub_reference import HubReference


class HubFailure(FetchError):
    """The newest files could not be fetched; `reason` is the message without the advice."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}: {advice}")
        self.reason = reason


@contextmanager
def translated_errors(reference: HubReference, endpoint: str, cache: Path) -> Iterator[None]:
    """Translate libraries' errors in the block: raises HubFailure, or UsageError for an invalid
    name."""
    try:
        yield
    except EdgespecError:
        raise
    except GatedRepoError as error:
        raise HubFailure(
            f"{reference.repo} is gated",
            f"accept its terms at {endpoint}/{reference.repo} and set HF_TOKEN to a token of that "
            "account",
        ) from error
    except RepositoryNotFoundError as error:
        raise HubFailure(
            f"{endpoint} has no model {reference.repo}, or it is private",
            "check the name, and set HF_TOKEN for a private model",
        ) from error
    except HFValidationError as error:
        raise UsageError(f"{reference.repo!r} is not the name of a repository: {error}") from error
    except HfHubHTTPError as error:
        raise HubFailure(
            f"{endpoint} answered {error.response.status_code} for {reference.repo}",
            "try again later; the part that was fetched is kept",
        ) from error
    except httpx2.HTTPError as error:
        raise HubFailure(
            f"the connection to {endpoint} failed ({str(error) or type(error).__name__})",
            "run the command again when you are online, it resumes where it stopped",
        ) from error
    except OSError as error:
        raise HubFailure(
            f"{reference} cannot be stored in {cache} ({error.strerror or error})",
            "free some space, or let HF_HOME name another folder, and run the command again",
        ) from error
