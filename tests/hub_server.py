"""A hub on 127.0.0.1: the endpoints of huggingface.co that fetching uses, and ways to fail."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REVISION = "a" * 40


@dataclass
class FakeHub:
    """Repositories by name, each files by name; what was asked; what goes wrong."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    private: dict[str, str] = field(default_factory=dict)
    """The token that opens each repository."""
    breaks_after: list[int] = field(default_factory=list)
    """Each download takes one and closes the connection after so many bytes."""
    elsewhere: str | None = None
    """The endpoint of another hub, to which downloads are sent."""
    tokens: list[str | None] = field(default_factory=list)
    """Headers that came with requests for files."""
    refusals: list[int] = field(default_factory=list)
    """Each download takes one and answers with this status."""
    told: dict[str, object] = field(default_factory=dict)
    """Claims of the listing about every file instead of the truth: `sha256`, `blobId`, ..."""
    commit: object = REVISION
    page: bytes | None = None
    """Answers every request, as a network does that wants a login first."""
    status: int | None = None
    """Status of every answer."""
    ignores_ranges: bool = False
    damages: bool = False
    claims_bytes: int | None = None
    """Size of every file in the listing."""
    ranges: list[str | None] = field(default_factory=list)
    """Requests of every download."""
    endpoint: str = ""


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def log_message(self, *args: object) -> None:
        """Says nothing."""

    def _answer(self) -> None:
        path = self.path.split("?")[0]
        if self.hub.page is not None:
            self._send(200, self.hub.page, {"Content-Type": "text/html"})
        elif self.hub.status:
            self._json(self.hub.status, {"error": "out of order"})
        elif path.startswith("/api/models/"):
            self._listing(path.removeprefix("/api/models/").partition("/revision/")[0])
        else:
            repo, _, rest = path.lstrip("/").partition("/resolve/")
            self._file(repo, rest.partition("/")[2])

    def _refused(self, repo: str) -> bool:
        token = self.hub.private.get(repo)
        if repo not in self.hub.repos or (
            token and self.headers.get("Authorization") != f"Bearer {token}"
        ):
            self._json(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return True
        if repo in self.hub.gated:
            self._json(403, {"error": "gated"}, {"X-Error-Code": "GatedRepo"})
            return True
        return False

    def _listing(self, repo: str) -> None:
        if self._refused(repo):
            return
        siblings = []
        for name, content in self.hub.repos[repo].items():
            size = self.hub.claims_bytes or len(content)
            sha256 = hashlib.sha256(content).hexdigest()
            lfs = {"sha256": sha256, "size": size, "pointerSize": 130}
            file = {"rfilename": name, "size": size, "blobId": "b" * 40, "lfs": lfs}
            lfs |= {key: value for key, value in self.hub.told.items() if key in lfs}
            file |= {key: value for key, value in self.hub.told.items() if key not in lfs}
            siblings.append(file)
        listing = {"id": repo, "modelId": repo, "sha": self.hub.commit, "siblings": siblings}
        self._json(200, listing)

    def _file(self, repo: str, name: str) -> None:
        if self._refused(repo):
            return
        content = self.hub.repos[repo][name]
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": REVISION,
            "X-Linked-Size": str(len(content)),
        }
        if self.command == "HEAD":
            self._send(200, b"", headers, len(content))
            return
        self.hub.tokens.append(self.headers.get("Authorization"))
        if self.hub.elsewhere is not None:
            self._send(302, b"", {"Location": self.hub.elsewhere + self.path})
            return
        if self.hub.refusals:
            self._json(self.hub.refusals.pop(0), {"error": "out of order"})
            return
        wanted = self.headers.get("Range")
        self.hub.ranges.append(wanted)
        if self.hub.damages:
            content = bytes(len(content))
        status = 200
        if wanted and not self.hub.ignores_ranges:
            status = 206
            content = content[int(wanted.removeprefix("bytes=").rstrip("-")) :]
        cut = self.hub.breaks_after.pop(0) if self.hub.breaks_after else len(content)
        self._send(status, content[:cut], headers, len(content))
        self.close_connection = cut < len(content)

    def _json(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(content).encode(), headers or {})

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
