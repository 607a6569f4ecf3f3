"""Which URLs may be fetched, and at which addresses.

Nothing connects here. Connect only to the addresses that `resolve` returns: they were checked, while a second
look-up of the same name might return a private address.
"""

from __future__ import annotations

import ipaddress
import queue
import re
import socket
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from localagent.errors import ToolError

MAX_URL = 4_000
"""Characters."""

_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?")
_NUMBER = re.compile(r"\d+|0x[0-9a-f]*")
_SAFE = "!#$%&'()*+,/:;=?@[]~"
"""Characters of a path or query that are not escaped."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Registered as not global, which older Pythons do not know.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in ("192.0.0.0/24", "192.88.99.0/24", "64:ff9b:1::/48", "3fff::/20", "5f00::/16")
)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class ParsedUrl:
    """A URL that may be fetched if its addresses may: those are not looked up yet."""

    scheme: str
    host: str
    port: int
    path: str
    """Path and query, as a request has them."""

    @property
    def netloc(self) -> str:
        """The host as a Host header names it, with the port unless it is the default one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The whole URL, without a fragment."""
        return f"{self.scheme}://{self.netloc}{self.path}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A checked address to connect to, as `socket` takes it."""

    family: int
    address: Any


def read_url(url: str) -> ParsedUrl:
    """The parts of a URL. Raises ToolError for one that is not fetched, whatever it resolves to."""
    if len(url) > MAX_URL:
        raise ToolError(f"the URL has {len(url):,} characters: at most {MAX_URL:,} are taken")
    if re.search(r"[\x00-\x20\x7f-\x9f\ud800-\udfff\\]", url):
        raise ToolError(f"{url!a:.200} is not a URL: it contains a space, a backslash or a control character")
    try:
        pieces = urlsplit(url)
        port = pieces.port
        host = pieces.hostname or ""
    except ValueError as error:
        raise ToolError(f"{url!r:.200} is not a URL: {error}") from None
    if pieces.scheme not in _PORTS:
        raise ToolError(f"{url!r:.200}: only http:// and https:// URLs are fetched")
    if "@" in pieces.netloc:
        raise ToolError("the URL contains a user name or password: such URLs are not fetched")
    path = quote(pieces.path or "/", safe=_SAFE) + (
        f"?{quote(pieces.query, safe=_SAFE)}" if pieces.query else ""
    )
    if port == 0 or pieces.netloc.endswith(":"):
        raise ToolError(f"{url!r:.200} is not a URL: the port is wrong")
    return ParsedUrl(pieces.scheme, _host(host, "[" in pieces.netloc), port or _PORTS[pieces.scheme], path)


def _host(host: str, brackets: bool) -> str:
    """A name in ASCII, or an address in its usual form. Raises ToolError."""
    wrong = ToolError(f"{host!r:.200} is not a host name")
    if brackets:
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            raise wrong from None
        if address.scope_id is not None:
            raise wrong
        return str(address)
    try:
        name = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        raise wrong from None
    name = name.lower()
    if len(name) > 254 or not _NAME.fullmatch(name):
        raise wrong
    if _NUMBER.fullmatch(name.removesuffix(".").rpartition(".")[2]):
        # Systems also read 127.1, 0x7f000001 and 017700000001 as addresses: only the plain form is taken.
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise ToolError(f"{host!r:.200}: write an address as four decimal numbers") from None
    return name


def resolve(target: ParsedUrl, seconds: float, allow_private: bool) -> list[Endpoint]:
    """The addresses of a host. Raises ToolError when there are none, or when one of them is not public."""
    found = _looked_up(target, seconds)
    endpoints = []
    for family, _, _, _, address in found:
        if family not in (socket.AF_INET, socket.AF_INET6):
            continue
        # Only the name is told: the model need not learn which private address it has.
        if not allow_private and not is_public(ipaddress.ip_address(str(address[0]).partition("%")[0])):
            raise ToolError(f"{target.host} is not on the public internet: private addresses are not fetched")
        endpoints.append(Endpoint(family, address))
    if not endpoints:
        raise ToolError(f"{target.host} has no address")
    return endpoints


def _looked_up(target: ParsedUrl, seconds: float) -> list[Any]:
    """What the system answers for a host, within that time: its own look-up takes no timeout."""
    answers: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(list(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)))
        except (OSError, UnicodeError) as error:
            answers.put(error)

    threading.Thread(target=look_up, name="look-up", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, seconds))
    except queue.Empty:
        raise ToolError(f"{target.host}: its address could not be looked up in time") from None
    if isinstance(answer, Exception):
        reason = getattr(answer, "strerror", None) or "no such host"
        raise ToolError(f"{target.host}: its address could not be looked up: {reason}") from answer
    return answer


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet. Of one that stands for another, the other counts."""
    if isinstance(address, ipaddress.IPv6Address):
        if (inner := address.ipv4_mapped or address.sixtofour) is not None:
            return is_public(inner)
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.is_site_local:
            return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)
