"""Access checks of the server: keys, hosts, origins, budgets. Sends no responses."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from pydantic import StrictInt, StrictStr

from edgespec.completions.protocols.request_parts import ParsedRequest, RequestError
from edgespec.completions.refusals import Refusal
from edgespec.errors import UsageError, setting
from edgespec.memory import process
from edgespec.settings.units import auto_bounds, format_size, parse_size

ORIGINS = {"*": ".*", "localhost": r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?"}
"""Patterns of allowed origins for any page, and for pages of this machine as in llama.cpp."""
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+|null")
"""An origin as browsers send it."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Access rules of one server."""

    host: str
    """Address that the server binds."""
    api_key: str | None = None
    """Key that clients must send, or several, one a line."""
    allowed_hosts: frozenset[str] = frozenset()
    """Host names that requests may give besides the address."""
    allowed_origins: frozenset[str] = frozenset()
    """Origins of web pages from elsewhere that may ask, as browsers send them; `*` is any."""
    admin_key: str | None = None
    """Key, or several, of those who may change the server as well."""

    def __post_init__(self) -> None:
        if self.api_key is None and not is_local(self.host):
            raise UsageError(
                f"--host {self.host} can be reached from other machines: set --api-key-file, so "
                "that not everybody there may use the model"
            )
        for origin in self.allowed_origins:
            if origin not in ORIGINS and not _ORIGIN.fullmatch(origin):
                raise UsageError(
                    f"{setting.allowed_origin(origin)}: it must be a scheme and a host in lower "
                    "case, such as https://app.example or http://localhost:3000, or * for any page"
                )
        for whose, given in (("clients", self.api_key), ("admins", self.admin_key)):
            if given is not None and not given.strip():
                raise UsageError(f"the key of {whose} is empty: leave it out, or give a key")

    @property
    def origins(self) -> str:
        """Pattern of the origins from elsewhere that may ask."""
        return "|".join(ORIGINS.get(one, re.escape(one)) for one in self.allowed_origins)

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raise Refusal for an unknown host name, against DNS rebinding.

        A server for other machines cannot know its names, and has a key instead.
        """
        name = ""
        with suppress(ValueError):  # a name without the port and an IPv6 address's brackets
            name = (urlsplit(f"//{headers.get('host', '')}").hostname or "").lower()
        if is_local(self.host) and name not in LOCAL_HOSTS | self.allowed_hosts | {self.host}:
            message = f"requests may not call this server {name!r}: --allowed-host {name} lets them"
            raise Refusal(403, message, code="host_not_allowed")

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Raise Refusal for requests of web pages from other servers that are not allowed."""
        origin = headers.get("origin")
        if origin is None or (self.allowed_origins and re.fullmatch(self.origins, origin)):
            return
        if origin.partition("://")[2] != (headers.get("host") or None):
            message = f"pages of {origin} may not use this server: its setting allowed-origin lets"
            raise Refusal(403, f"{message} them", code="origin_not_allowed")

    def check_key(self, headers: Mapping[str, str]) -> str:
        """The name of the client that sent a right key, which does not tell the key; empty if
        clients need none. Raises Refusal for a wrong one."""
        if self.api_key is None:
            return ""
        if (key := _sent(headers, self.api_key) or _sent(headers, self.admin_key)) is None:
            ways = "`Authorization: Bearer KEY`, `X-Api-Key: KEY` or `Api-Key: KEY`"
            message = f"the API key is missing or wrong: send it as {ways}"
            wanted = {"WWW-Authenticate": "Bearer"}
            raise Refusal(401, message, code="invalid_api_key", headers=wanted)
        return hashlib.sha256(key).hexdigest()

    def check_admin(self, headers: Mapping[str, str]) -> None:
        """Raise Refusal unless the client may change the server: with an admin key, or where there
        are no keys."""
        if (self.api_key or self.admin_key) and _sent(headers, self.admin_key) is None:
            message = "this needs an admin key, of the file of the server's setting admin-key-file"
            raise Refusal(403, message, code="admin_key_needed")


class BudgetRequest(ParsedRequest):
    """A request for another memory budget."""

    memory_budget: StrictInt | StrictStr
    """A number of bytes, a size such as 2GiB, or auto."""


@dataclass(frozen=True, slots=True)
class BudgetLimit:
    """The largest budget that clients may give a server."""

    most_bytes: int
    auto: str
    """The budget that follows the free memory, and that `auto` stands for."""

    @classmethod
    def of(cls, budget: int | str) -> Self:
        """The limit of a server that is started with a budget, on this machine."""
        most = process.resolve_budget(budget)
        if (bounds := auto_bounds(budget)) and bounds[1]:
            most = process.budget_bounds(budget)[1]
        most = min(most, process.total_bytes())
        return cls(most, f"auto:1-{most}" if bounds is None else str(budget))

    def budget_of(self, content: object) -> int | str:
        """The budget in decoded JSON. Raises RequestError and UsageError."""
        size = BudgetRequest.parse(content).memory_budget
        if size == "auto":
            return self.auto
        n_bytes = parse_size(size, process.total_bytes())
        if n_bytes > self.most_bytes:
            raise RequestError(
                f"memory_budget: {format_size(n_bytes)} is above the server's setting max-budget, "
                f"{format_size(self.most_bytes)}: raise it, or give less",
                "memory_budget",
                "budget_too_large",
            )
        return n_bytes


def _sent(headers: Mapping[str, str], keys: str | None) -> bytes | None:
    """The one of the keys, one a line, that a client has sent; None if it has sent none.

    They are compared in constant time against timing attacks.
    """
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = headers.get("x-api-key", headers.get("api-key", ""))
    # headers are bytes that were read as Latin-1; keys are UTF-8
    sent = key.strip().encode("latin-1", "replace")
    known = (line.strip() for line in (keys or "").encode(errors="surrogateescape").splitlines())
    right = [one for one in known if hmac.compare_digest(sent, one) and one]
    return right[0] if right else None


def is_local(host: str) -> bool:
    """True if only this machine reaches the address."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
