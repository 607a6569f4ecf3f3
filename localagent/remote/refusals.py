"""What a server says when it does not answer, as errors in one line that say what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from localagent.errors import ContextOverflow, LocalAgentError, ServerRefused, StreamBroken, UnknownModel
from localagent.settings import API_KEY
from localagent.wording import one_line, quoted

_LOG = "its log says more"
_OVERFLOW = re.compile(
    r"context length is (?P<context>[\d,]{1,12}) tokens.*?(?P<least>more than )?\b(?P<prompt>[\d,]{1,12}) "
    r"(?:input )?tokens"
    r"|prompt \(length (?P<length>\d{1,12})\) is longer than the maximum model length of (?P<most>\d{1,12})",
    re.DOTALL,
)
"""How OpenAI's API, and servers like it, say that a prompt is too long; vLLM has two ways."""


def refusal(
    url: str, path: str, status: int, body: Any, header: Callable[[str], str], keyed: bool
) -> LocalAgentError:
    """The error for a status that is not 200, in one line that says what to do.

    `body`: the JSON that came with it, None if there was none. `header`: what a header says, "" for none.
    `keyed`: a key was sent.
    """
    said, code = error_in(body)
    if code == "model_not_found":
        return UnknownModel(f"{url}: {said}" if said else f"{url} has no such model: see {url}/v1/models")
    if (overflow := overflow_in(body, said)) is not None:
        return overflow
    why = f": {said}" if said else ""
    match status:
        case 401 | 403 if keyed:
            text = f"{url} refuses the key in {API_KEY} ({status}): correct it"
        case 401 | 403:
            text = f"{url} wants a key ({status}): put it into {API_KEY}"
        case 404 | 405 if said.casefold() not in ("", "not found"):
            text = f"{url} refuses {path} ({status}){why}: correct the model's name or the address"
        case 404 | 405:
            text = f"{url} has no {path} ({status}): correct the address, or give one of another server"
        case 429 | 503:
            wait = header("retry-after")
            when = f"in {wait} seconds" if wait.isdigit() and len(wait) < 6 else "later"
            text = f"{url} cannot answer now ({status}){why}: ask again {when}"
        case _ if 300 <= status < 400:
            where = quoted(header("location"), 200)
            text = f"{url} sends its clients to {where} ({status}): use that address"
        case _ if status >= 500:
            advice = "" if said.endswith(_LOG) else f": {_LOG}"  # a localagent says that itself
            text = f"{url} failed ({status}){why}{advice}"
        case _:
            text = f"{url} refuses the request ({status}){why}: change what it names"
    told = header("retry-after")
    return ServerRefused(text, status, float(told) if told.isdigit() and len(told) < 6 else None)


def error_in(body: Any) -> tuple[str, str]:
    """What a server says went wrong, and its word for it: `error` is an object in OpenAI's API, and plain
    text, or called `detail` or `message`, in others.
    """
    if not isinstance(body, Mapping):
        return "", ""
    error = next((body[name] for name in ("error", "detail", "message") if body.get(name)), "")
    code = ""
    if isinstance(error, Mapping):
        code = next((str(error[name]) for name in ("code", "type") if isinstance(error.get(name), str)), "")
        error = error.get("message") or error
    said = error if isinstance(error, str) else json.dumps(error)
    return one_line(said, 300).rstrip("."), code


def overflow_in(body: Any, said: str) -> ContextOverflow | None:
    """The typed error for a prompt that is too long for the server's model."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if isinstance(error, Mapping):  # as llama-server has it
        prompt, context = error.get("n_prompt_tokens"), error.get("n_ctx")
        if type(prompt) is int and type(context) is int:
            return ContextOverflow(prompt, context)
    if found := _OVERFLOW.search(said):
        told = (found["prompt"] or found["length"], found["context"] or found["most"])
        prompt, context = (int(each.replace(",", "")) for each in told)
        return ContextOverflow(prompt, context, exact=found["least"] is None)
    return None


def stream_error(url: str, body: Any) -> LocalAgentError:
    """The error for what a server says in the midst of a stream."""
    said, _ = error_in(body)
    if (overflow := overflow_in(body, said)) is not None:
        return overflow
    error = body.get("error") if isinstance(body, Mapping) else None
    code = error.get("code") if isinstance(error, Mapping) else None
    if type(code) is int and 400 <= code < 500:  # vLLM looks at a request when the stream has begun already
        return ServerRefused(f"{url} refuses the request ({code}): {said}: change what it names", code)
    return StreamBroken(f"{url} broke the answer off: {said or 'it says no reason'}: ask again")
