"""The chat page of the server: its files, and the policy under which a browser runs them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import PurePosixPath

from starlette.requests import Request
from starlette.responses import Response

from edgespec.completions.refusals import Refusal

_STATIC = files("edgespec.server").joinpath("static")
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
"""Kinds of files of the page; others, such as licences, are not served."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
"""Content security policy; only the sanitiser may turn text into elements."""


async def page(request: Request) -> Response:
    """Response with the page or one of its files. Raises Refusal for another path."""
    name = request.path_params.get("name", "index.html")
    kind = _TYPES.get(PurePosixPath(name).suffix)
    if kind is None or not (_STATIC / name).is_file():
        raise Refusal(404, f"there is nothing at {request.scope['path']}", code="not_found")
    headers = {
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return Response(static_file(name), headers=headers, media_type=kind)


@cache
def static_file(name: str) -> bytes:
    """The content of a file that comes with the server."""
    return (_STATIC / name).read_bytes()
