"""The web page for chatting, and its files.

All of them are part of the package: the page loads nothing from other servers.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

from edgespec.completions.refusals import Refusal

_FILES = {
    "index.html": "text/html",
    "chat.css": "text/css",
    "chat.js": "text/javascript",
    "api.js": "text/javascript",
    "conversation.js": "text/javascript",
    "view.js": "text/javascript",
    "library.js": "text/javascript",
    "engine.js": "text/javascript",
    "math.js": "text/javascript",
    "origins.js": "text/javascript",
    "marked.umd.js": "text/javascript",
    "purify.min.js": "text/javascript",
    "highlight.min.js": "text/javascript",
    "temml.min.js": "text/javascript",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
"""Content security policy; only the sanitiser may turn text into elements."""


async def page(request: Request) -> Response:
    """Response with the page or one of its files. Raises Refusal for another path."""
    name = request.path_params.get("name", "index.html")
    if name not in _FILES:
        raise Refusal(404, f"there is nothing at {request.url.path}", code="not_found")
    headers = {
        "Content-Security-Policy": POLICY,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return Response(_content(name), headers=headers, media_type=_FILES[name])


@cache
def _content(name: str) -> bytes:
    return files("edgespec.server").joinpath("static", name).read_bytes()
