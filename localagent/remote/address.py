"""Where a model on a server is: `vllm://host:8000/model`, and what is read from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote, urlsplit

from localagent.errors import UsageError
from localagent.wording import listed, quoted

Kind = Literal["vllm", "sglang", "llama-server", "openai"]
PORTS: dict[Kind, int] = {"vllm": 8000, "sglang": 30000, "llama-server": 8080, "openai": 443}
"""The kinds of servers, with the ports that they listen on by default."""
LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names of this machine."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server of a kind. `model`: the name that it knows the model by; None for the only one it has."""

    kind: Kind
    url: str
    model: str | None = None


def is_address(text: object) -> bool:
    """Whether that is the address of a model on a server, and no name or path."""
    return isinstance(text, str) and text.partition("://")[0].partition("+")[0] in PORTS and "://" in text


def read_address(text: str) -> Address:
    """`kind://host:port/model`; `kind+https://` and `kind+http://` say how, and by default a server on this
    machine is asked by HTTP, and any other by HTTPS: what is sent is a conversation. What stands before
    `/v1/` in the path of `openai://` belongs to the server's address, and not to the model's name.

    Raises UsageError.
    """
    scheme, _, rest = text.partition("://")
    kind, _, how = scheme.partition("+")
    example = "it must be like vllm://127.0.0.1:8000/model"
    if kind not in PORTS:
        raise UsageError(f"no kind of server {quoted(kind)}: there are {listed(PORTS)}")
    if how not in ("", "http", "https"):
        raise UsageError(f"the address {quoted(text)} says {quoted(how)}: choose {kind}+http or {kind}+https")
    try:
        parts = urlsplit(f"//{rest}")
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number, a bracket that is not closed
        host = port = None
    if not host or parts.query or parts.fragment:
        raise UsageError(f"the address {quoted(text)} is none of a model on a server: {example}")
    if parts.username is not None:  # it would be in every error message
        raise UsageError("the address has a name or a password in it: put the key into LOCALAGENT_API_KEY")
    how = how or ("http" if host in LOCAL else "https")
    shown = f"[{host}]" if ":" in host else host
    path, base = f"/{parts.path.strip('/')}/", ""
    if kind == "openai":
        port = port or (80 if how == "http" else None)
        base, version, rest = path.partition("/v1/")
        path, base = (rest, base) if version else (path, "")
    url = f"{how}://{shown}:{port or PORTS[kind]}{base}"
    return Address(kind, url, unquote(path.strip("/")) or None)
