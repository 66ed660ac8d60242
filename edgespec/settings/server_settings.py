"""Settings of a server, beside those of its models and answers; a batch has its limit of bodies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from edgespec.settings.base import Flag, Settings
from edgespec.settings.config import INT32_MAX, Count
from edgespec.settings.parsing import MAX_PORT, budget, disk_size

DAY_S = 24 * 3600


class ServerSettings(Settings):
    """Settings of a server, which a file may say."""

    host: Annotated[str, Flag(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Flag(metavar="N"), Field(ge=0, le=MAX_PORT)] = 8080
    """Port; 0 takes a free one."""
    api_key_file: Annotated[Path | None, Flag(metavar="FILE")] = None
    """File of keys that clients must send, one a line; texts of clients with other keys stay apart.
    A single key may stand in the environment variable EDGESPEC_API_KEY."""
    reasoning_budget: Annotated[int, Flag(metavar="N"), Field(ge=-1, le=INT32_MAX)] = -1
    """Most tokens of a model's reasoning, which is then ended as its template ends it, unless a
    request names another number; 0: none. Default: -1, no limit."""
    admin_key_file: Path | None = None
    """File of keys, one a line, of those who may also change the budget. Default: everybody where
    no key is needed, otherwise nobody."""
    max_budget: Annotated[int | str | None, BeforeValidator(budget)] = None
    """Largest memory budget that clients may set. Default: that of the start."""
    allowed_host: Annotated[tuple[str, ...], Flag(metavar="NAME")] = ()
    """Host names that requests may use besides the address."""
    allowed_origin: tuple[str, ...] = ()
    """Origins of web pages that may ask from a browser (CORS), such as http://localhost:3000,
    localhost for all of this machine, or * for any."""
    alias: str | None = None
    """Name of the model in answers."""
    queue: Count = 32
    """Requests that may wait; more are refused with status 503."""
    max_body: Annotated[int | None, BeforeValidator(disk_size)] = None
    """Largest request body; the plan keeps memory for it. Default: 64 KiB and 16 bytes for each
    token of the context."""
    time_limit: Annotated[float | None, Field(ge=0, le=DAY_S)] = None
    """Most seconds of an answer from its turn on, after which it ends as if its tokens were used
    up. Default: no limit."""
    drain: Annotated[float, Field(ge=0, le=DAY_S)] = 30
    """Seconds that requests under way have after Ctrl-C or SIGTERM; a second one ends them at
    once."""
    log_json: bool = False
    """Log each request as a JSON object on one line."""
