"""Who may ask: everything that is decided from the head of a request, before its body is read.

The server listens on loopback, where every program and every page in a browser can reach it. So a page must
not: its host name is checked against DNS rebinding, its origin against other sites, and a body must have a
type that a page cannot send elsewhere without asking first.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from localagent.errors import UsageError
from localagent.server.bounds import DEFAULT_BOUNDS, Bounds
from localagent.server.exchange import BadRequest

KEYS = "LOCALAGENT_API_KEYS"
"""The variable of the environment with keys, separated by commas."""
OPEN = frozenset({"/health"})
"""The paths that need no key."""
_PREFLIGHT_AGE = "600"
_ABSOLUTE = re.compile(rb"https?://([^/]*)(.*)", re.IGNORECASE)
"""A target that names its host. What comes after a question mark is no part of it any more."""
_MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://(\*|[^*/]+)", re.IGNORECASE)
_OF_A_PROGRAM = re.compile(r"(?!https?:)[a-z][a-z0-9+.-]{0,39}://")
"""The origin of a desktop program or of a browser's extension, whose pages come with it."""
_HOST_NAME = re.compile(r"[\w.-]+", re.ASCII)
_CONTAINERS = frozenset({"host.docker.internal", "host.containers.internal"})
"""What Docker and Podman call this machine inside their containers. `.internal` is reserved, so no public
name server has a page under these names that could be made to mean this machine later (DNS rebinding). That
of a hostile network could still lie, so a page with such an origin is not one of ours."""
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks. `name`: for the queue and the log; `scope`: whose evaluated prompts may be reused."""

    name: str
    scope: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request."""

    method: str
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    address: str = ""
    authority: str | None = None
    """The host that the target names, which it rarely does: see `in_origin_form`."""

    @classmethod
    def of(cls, scope: Mapping[str, Any], authority: str | None = None) -> Head:
        """The head of a request as an ASGI server gives it."""
        address = scope["client"][0] if scope.get("client") else ""
        return cls(scope["method"], scope["path"], scope["headers"], address, authority)

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0"))
            for name, value in self.headers
        )

    @property
    def wants_page(self) -> bool:
        """Whether a browser asks for the page; other clients that look at `/` do not name HTML."""
        accepted = b",".join(value for name, value in self.headers if name == b"accept").lower()
        return self.path == "/" and self.method in ("GET", "HEAD") and b"text/html" in accepted

    @property
    def from_own_page(self) -> bool:
        """Whether the origin is that of this server."""
        _, mark, host = (self.one(b"origin") or "").partition("://")
        same = bool(mark) and host.lower() == (self.one(b"host") or "").lower()
        return same and _name_of(host) not in _CONTAINERS

    @property
    def media_type(self) -> str:
        """The type of the body without its parameters; "" without one."""
        return (self.one(b"content-type") or "").partition(";")[0].strip().lower()

    @property
    def is_json(self) -> bool:
        """Whether the body is read as JSON, by its type and by who can have sent that."""
        kind = self.media_type
        if kind and not kind.startswith("text/") and kind not in _FORMS:
            # Before it sends such a type to another site, a browser asks whether it may (a preflight).
            return _MEDIA_TYPE.fullmatch(kind) is not None
        # Any page can send these at once. Ollama reads them as JSON, so its clients, and `curl -d` in its
        # documentation, name no other type. What a browser says of itself tells its pages from those.
        return (
            self.path.lstrip("/").startswith("api/")
            and self.one(b"sec-fetch-site") in (None, "none", "same-origin")
            and (self.one(b"origin") is None or self.from_own_page)
        )

    def one(self, name: bytes) -> str | None:
        """The value of a header; None without it. Raises BadRequest if there are several."""
        found = [value for key, value in self.headers if key == name]
        if len(found) > 1:
            raise BadRequest(f"the header {name.decode()} is there {len(found)} times")
        return found[0].decode("latin-1").strip() if found else None


@dataclass(frozen=True, slots=True)
class Access:
    """The rules. `host`: the address that the server is bound to."""

    host: str = "127.0.0.1"
    keys: tuple[str, ...] = field(default=(), repr=False)
    origins: tuple[str, ...] = ()
    """Whose pages may ask: as browsers send it, "app://*" for all of a scheme, or "*"."""
    page: bool = False
    """Whether browsers get a page at `/`. It needs no key, since it is the same for everybody."""
    share: bool = False
    """Whether clients with different keys may reuse each other's evaluated prompts."""
    allow_hosts: tuple[str, ...] = ()
    """Further names in `Host` that mean this server."""

    def __post_init__(self) -> None:
        """Raise UsageError for a server that anybody on the network could use, and for useless keys."""
        if not self.loopback and not self.keys:
            raise UsageError(
                f"host is {self.host!r}, which other machines can reach: give a key with --api-key-file or "
                "LOCALAGENT_API_KEYS, or listen on 127.0.0.1"
            )
        if any(not key.isascii() or not key.isprintable() or " " in key for key in self.keys):
            raise UsageError("an API key may hold only printable ASCII characters, and no space")
        for origin in self.origins:
            if _ORIGIN.fullmatch(origin) is None:
                raise UsageError(f"origin is {origin!r}: write it like http://localhost:3000, app://*, or *")
        for name in self.allow_hosts:
            if _HOST_NAME.fullmatch(name) is None:
                raise UsageError(f"allowed host is {name!r}: write a name like models.lan, without a port")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return _is_loopback(self.host)

    @property
    def owner(self) -> str:
        """Whose evaluated prompts are kept on disk: those of the only key; "" where all are shared."""
        alone = len(self.keys) == 1 and not self.share
        return _scope(hashlib.sha256(self.keys[0].encode()).digest()) if alone else ""

    def admit(self, head: Head, bounds: Bounds = DEFAULT_BOUNDS) -> Client:
        """Who asks. Raises BadRequest."""
        self._check_framing(head, bounds)
        for host in (head.one(b"host") or "", head.authority):
            if self.loopback and host is not None and not self._answers_to(host):
                raise BadRequest(
                    f"this server does not answer to the host name {host!r:.80}: use 127.0.0.1 or localhost, "
                    "or start it with --allow-host NAME",
                    code="host_not_allowed",
                    status=403,
                )
        self.check_origin(head)
        client = self._identify(head)
        if head.method == "POST":
            if (coding := head.one(b"content-encoding") or "identity").lower() != "identity":
                raise BadRequest(f"Content-Encoding is {coding!r:.80}: send the body as it is", status=415)
            if not head.is_json:
                raise BadRequest(
                    f"Content-Type is {head.media_type!r:.80}: it must be application/json",
                    code="unsupported_media_type",
                    status=415,
                )
        return client

    def check_origin(self, head: Head) -> str | None:
        """The origin of a page that may ask; None where no page asks. Raises BadRequest."""
        origin = head.one(b"origin")
        if origin is None:
            return None
        listed = {origin, f"{origin.partition('://')[0]}://*", "*"} & {*self.origins}
        # A sandboxed frame and a page from a file both say null, so allowing it would allow them all.
        if origin.lower() == "null" or not (head.from_own_page or listed):
            # Some programs have another origin each time they start.
            program = _OF_A_PROGRAM.match(origin)
            hint = f": start it with --origin '{program[0]}*'" if program else " (see --origin)"
            raise BadRequest(
                f"a page of {origin!r:.80} may not use this server{hint}",
                code="origin_not_allowed",
                status=403,
            )
        return origin

    def cors(self, head: Head) -> list[tuple[bytes, bytes]]:
        """What a browser is told where a page of an allowed origin asks."""
        origin = head.one(b"origin")
        if origin is None or not self.origins:
            return []
        said = {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": "x-localagent-model, x-localagent-ignored, retry-after",
            "vary": "origin",
        }
        if head.method == "OPTIONS":
            said["access-control-allow-methods"] = "GET, POST"
            said["access-control-allow-headers"] = (
                head.one(b"access-control-request-headers") or "content-type"
            )
            said["access-control-max-age"] = _PREFLIGHT_AGE
        return [(name.encode(), value.encode("latin-1")) for name, value in said.items()]

    def _check_framing(self, head: Head, bounds: Bounds) -> None:
        """Refuse heads that are too large, and what a proxy in front could read as two requests."""
        names = [name for name, _ in head.headers]
        # The parser bounds only what it has to wait for, and a quarter of a megabyte may come at once.
        size = sum(len(name) + len(value) for name, value in head.headers)
        if len(names) > bounds.headers or size > bounds.header_bytes:
            raise BadRequest("the headers are too large", status=431)
        coding = head.one(b"transfer-encoding")
        if coding is not None and b"content-length" in names:
            raise BadRequest("Content-Length and Transfer-Encoding exclude each other")
        if coding is not None and coding.lower() != "chunked":
            raise BadRequest(f"Transfer-Encoding is {coding!r:.80}: only chunked is read", status=501)

    def _answers_to(self, host: str) -> bool:
        """Whether a name can mean no other machine than this one, or is allowed."""
        name = _name_of(host)
        allowed = _CONTAINERS.union(map(_name_of, self.allow_hosts))
        return _is_loopback(name) or name.endswith(".localhost") or name in allowed

    def _identify(self, head: Head) -> Client:
        # A browser asks without the key whether it may send one.
        is_open = head.path in OPEN or (self.page and head.wants_page)
        if not self.keys or is_open or head.method == "OPTIONS":
            # On loopback all have one address; then it is programs that take turns.
            program = (head.one(b"user-agent") or "").partition("/")[0][:60]
            return Client(f"{head.address} {program}".strip())
        # Claude Code sends both headers, and one may be left over from another server. So either will do, and
        # where both are right it is x-api-key that says who asks.
        given = [head.one(b"x-api-key") or ""]
        scheme, _, token = (head.one(b"authorization") or "").partition(" ")
        given.append(token.strip() if scheme.lower() == "bearer" else "")
        # Digests are of one length, and all are compared: the time tells nothing of a key.
        keys = [hashlib.sha256(key.encode()).digest() for key in self.keys]
        digests = [hashlib.sha256(each.encode("latin-1", "replace")).digest() for each in given]
        found = [(digest, [hmac.compare_digest(digest, key) for key in keys]) for digest in digests]
        for digest, same in found:
            if any(same):
                # Of one key only, everybody is the same client.
                alone = self.share or len(keys) == 1
                return Client(f"key {same.index(True) + 1}", "" if alone else _scope(digest))
        wrong = (
            "the API key is wrong" if any(given) else "an API key is needed: send Authorization: Bearer KEY"
        )
        raise BadRequest(wrong, code="invalid_api_key", status=401)


def in_origin_form(scope: MutableMapping[str, Any]) -> tuple[MutableMapping[str, Any], str | None]:
    """The request with a path as its target, and the host that the target named, if it was no path already.

    Clients that go through a proxy write `GET http://127.0.0.1:8080/health HTTP/1.1`, and RFC 9112 (3.2.2)
    has every server accept that.
    """
    absolute = _ABSOLUTE.fullmatch(scope.get("raw_path") or b"")
    if absolute is None:
        return scope, None
    authority, path = absolute[1].decode("latin-1"), absolute[2] or b"/"
    return {**scope, "path": unquote(path.decode("latin-1")), "raw_path": path}, authority


def keys_for(file: Path | None) -> tuple[str, ...]:
    """The keys that clients may send: those of LOCALAGENT_API_KEYS, and those in `file`.

    Raises UsageError for a file that cannot be read, or that holds none.
    """
    keys = read_keys(os.environ.get(KEYS, "").replace(",", "\n"))
    if file is None:
        return keys
    try:
        told = read_keys(file.expanduser().read_text("utf-8"))
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise UsageError(f"--api-key-file {file}: {said}") from error
    if not told:
        raise UsageError(f"--api-key-file {file} holds no key: write one a line")
    return tuple(dict.fromkeys((*keys, *told)))


def read_keys(text: str) -> tuple[str, ...]:
    """The keys in a file, one a line; empty lines and lines that begin with # are left out."""
    lines = (line.strip() for line in text.splitlines())
    return tuple(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def _scope(digest: bytes) -> str:
    return f"key-{digest.hex()[:16]}"


def _name_of(host: str) -> str:
    """The name in `Host`, without the port, in small letters."""
    return _without_port(host).rstrip(".").lower()


def _without_port(host: str) -> str:
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return "" if port.removeprefix(":").strip("0123456789") else address
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _is_loopback(name: str) -> bool:
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
