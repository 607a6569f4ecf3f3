"""A model hub and a package index on loopback: what huggingface_hub and pip ask of the real ones."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c0ffee" + "0" * 34
PIECE = 64 << 10


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Loopback:
    """Repositories {repo: {path: bytes}} and wheels {file name: bytes}, with faults to order."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    wheels: dict[str, bytes] = field(default_factory=dict)
    commit: str = COMMIT
    refuse: dict[str, tuple[int, str]] = field(default_factory=dict)
    """repo -> (status, X-Error-Code)"""
    lie: dict[str, bytes] = field(default_factory=dict)
    """path -> content that is served in place of the published one"""
    pause_after: int | None = None
    """Hold every body after so many bytes, until `go`."""
    drop_after: int | None = None
    """Close the connection once, after so many bytes of a body."""
    go: threading.Event = field(default_factory=threading.Event)
    served: dict[str, int] = field(default_factory=dict)
    ranges: list[tuple[str, str]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def __enter__(self) -> Loopback:
        loopback = self

        class Handler(_Handler):
            state = loopback

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_served(self, path: str, size: int, seconds: float = 20) -> None:
        """Until at least `size` bytes of `path` went out."""
        deadline = time.monotonic() + seconds
        while self.served.get(path, 0) < size:
            assert time.monotonic() < deadline, f"only {self.served} served"
            time.sleep(0.01)

    def listing(self, repo: str, *, blobs: bool) -> dict[str, Any]:
        """`blobs`: with sizes and hashes, which the hub tells when it is asked for them alone."""
        siblings = []
        for path, content in self.repos[repo].items():
            stored, digest = content, hashlib.sha256(content).hexdigest()
            if len(content) > 10_000:  # git has a pointer to it
                stored = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\n" % digest.encode()
            entry: dict[str, Any] = {"rfilename": path, "size": len(content), "blobId": git_id(stored)}
            if stored is not content:
                entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(entry if blobs else {"rfilename": path})
        return {"_id": "1", "id": repo, "modelId": repo, "sha": self.commit, "siblings": siblings}


class _Handler(BaseHTTPRequestHandler):
    state: Loopback

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.state.requests.append(self.path)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", path):
            self._listing(match[1], match[2])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._body(match[3], self.state.repos[match[1]][match[3]])
        elif path == "/simple/tiny-weights/":
            links = "".join(f'<a href="/wheels/{name}">{name}</a>' for name in self.state.wheels)
            self._send(200, links.encode(), "text/html")
        elif path.startswith("/wheels/") and path[8:] in self.state.wheels:
            self._body(path[8:], self.state.wheels[path[8:]])
        else:
            self._send(404, b"", "text/plain")

    def _listing(self, repo: str, revision: str) -> None:
        if repo in self.state.refuse:
            status, code = self.state.refuse[repo]
            body = b"<html>Welcome</html>" if code == "portal" else b"{}"
            self._send(status, body, "application/json", {"X-Error-Code": code, "X-Error-Message": code})
        elif repo not in self.state.repos:
            self._send(404, b"{}", "application/json", {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("main", self.state.commit):
            self._send(404, b"{}", "application/json", {"X-Error-Code": "RevisionNotFound"})
        else:
            listing = self.state.listing(repo, blobs="blobs=true" in self.path.lower())
            self._send(200, json.dumps(listing).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _body(self, name: str, content: bytes) -> None:
        content = self.state.lie.get(name, content)
        start = 0
        if asked := self.headers.get("Range"):
            self.state.ranges.append((name, asked))
            start = int(asked.removeprefix("bytes=").partition("-")[0])
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        try:
            for at in range(start, len(content), PIECE):
                limit = self.state.pause_after
                if limit is not None and at >= limit:
                    self.state.go.wait()
                if self.state.drop_after is not None and at >= self.state.drop_after:
                    self.state.drop_after = None
                    self.close_connection = True
                    return
                self.wfile.write(content[at : at + PIECE])
                self.state.served[name] = at + PIECE
        except OSError:
            pass  # the client was killed: that is the test
