"""Makes the host of a model on a server of tokens, after both sides were seen to have the same tokenizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localagent.errors import (
    ContextOverflow,
    DialectMismatch,
    ServerRefused,
    StreamBroken,
    TemplateFailed,
    UnknownModel,
    UsageError,
)
from localagent.hosts.host import DEFAULT_CONTEXT
from localagent.hosts.protocol import Form
from localagent.remote.address import Address
from localagent.remote.server import Server
from localagent.remote.tokens.apis import (
    LLGUIDANCE,
    Api,
    LlamaServer,
    Sglang,
    VllmCompletions,
    VllmTokens,
)
from localagent.remote.tokens.host import TokenHost
from localagent.remote.tokens.vocabulary import ModelFiles, disagreement, read_model_files
from localagent.settings import API_KEY
from localagent.wording import listed, quoted

PROBE = (
    {"role": "system", "content": 'Answer in JSON: {"n": 1}.\n'},
    {"role": "user", "content": "  12,345 caf\u00e9s? \u6f22\u5b57 \U0001f600\n\n\treturn x"},
)
"""A conversation that is rendered here, and tokenized here and there."""
_LANES = 64
"""Of vLLM and SGLang, which give as many answers at once as they have memory for, and do not say how many."""
_LARK: tuple[Form, ...] = ("lark", "schema")
_OF_BACKENDS: Mapping[str, tuple[Form, ...]] = {
    "llguidance": _LARK,
    "xgrammar": ("ebnf", "schema"),
    "none": (),
}
"""What SGLang takes with each of its grammar backends; all others, a schema."""


@dataclass(frozen=True, slots=True)
class ReportedModel:
    """What a server says of the model that it was asked for."""

    id: str
    """What it calls the model."""
    files: str | None
    """Where it has the model's files from: a path there, or a repository."""
    context: int | None
    make_api: Callable[[], Api]
    tokenized: Callable[[str], Sequence[int]] | None
    """The server's own tokenizer; None where it offers none."""
    size: int | None = None
    """Of the vocabulary."""
    lanes: int = 1
    takes: Callable[[Sequence[int]], Collection[Form]] = lambda ids: ()
    """The forms in which the server can be given a constraint, found out with a prompt."""


def open_host(
    address: Address,
    *,
    tokenizer: str | Path | None = None,
    context: int | None = None,
    key: str | None = None,
    silence: float = 600.0,
) -> TokenHost:
    """The host of the model at `address`, of a kind that gives tokens.

    `tokenizer`: where its files are, by default where the server has them from. `context`: tokens that a
    conversation may have, if the server takes more or does not say. `key`: by default the one in
    LOCALAGENT_API_KEY. `silence`: seconds without a sign of life after which a server is given up.

    Raises UsageError, UnknownModel, ServerUnreachable, ServerRefused, StreamBroken, InvalidWeights,
    EngineMissing, DownloadFailed; DialectMismatch where the server has another tokenizer.
    """
    server = Server.at(address.url, key or os.environ.get(API_KEY, "").strip() or None, silence)
    found = _LOOKS[address.kind](server, address.model)
    where = tokenizer or found.files
    if where is None:
        raise UsageError(
            f"{server.url} does not say where its model comes from: give tokenizer= a folder with "
            "tokenizer.json, a GGUF file, or owner/name of a repository"
        )
    files = read_model_files(where)
    most = [each for each in (context, found.context, files.context) if each]
    name = found.id.rpartition("/")[2].removesuffix(".gguf")
    size = min(most, default=DEFAULT_CONTEXT)
    host = TokenHost(
        server,
        found.make_api,
        files,
        name=name,
        model=found.id,
        context=size,
        lanes=found.lanes,
        takes=found.takes,
    )
    _require_agreement(host, found, files)
    return host


def _require_agreement(host: TokenHost, found: ReportedModel, files: ModelFiles) -> None:
    """Ids of another vocabulary would be read as other words, and nothing would say so."""
    wrong = None
    if found.size is not None and found.size <= max(files.vocabulary.special, default=-1):
        wrong = f"it has {found.size:,} tokens, fewer than the files here name"
    elif found.tokenized is not None:
        wrong = disagreement(files.vocabulary, found.tokenized) or _of_a_prompt(host, found.tokenized)
    if wrong:
        raise DialectMismatch(
            f"the model at {host.server.url} has another tokenizer than {files.path}: {wrong}: give "
            "tokenizer= the files of the model that is served"
        )


def _of_a_prompt(host: TokenHost, tokenized: Callable[[str], Sequence[int]]) -> str | None:
    """Where the server has other ids for a whole conversation as it is rendered here; None if nowhere.

    Which template the server has is no matter: it is never asked to render.
    """
    for conversation in (PROBE, PROBE[1:]):  # not every template takes instructions
        try:
            prompt = host.render(conversation)
        except (TemplateFailed, ContextOverflow):
            continue
        theirs = tuple(tokenized(prompt.text))
        # Some vocabularies ask for a token in front that no text spells.
        ours = prompt.ids[1:] if len(prompt.ids) == len(theirs) + 1 else prompt.ids
        return None if ours == theirs else "a conversation has other tokens there"
    return None


# -- what each kind of server says of itself -----------------------------------------------------------------


def _look_at_llama_server(server: Server, model: str | None) -> ReportedModel:
    entry, props = _entry(server, model), _told(server, "/props")
    meta, settings = (
        each if isinstance(each, Mapping) else {}
        for each in (entry.get("meta"), props.get("default_generation_settings"))
    )

    def tokenized(text: str) -> Sequence[int]:
        return _tokens(server, "/tokenize", {"content": text, "add_special": False, "parse_special": True})

    def takes(ids: Sequence[int]) -> Collection[Form]:
        # What it makes of a schema tells how it was built. Of an empty prompt in a list nothing is evaluated;
        # where that is refused, the prompt that comes next costs nothing that is in its cache.
        body = {"prompt": [[]], "n_predict": 0, "cache_prompt": True, "json_schema": {}}
        try:
            told = server.ask(LlamaServer.path, body)
        except ServerRefused as error:
            if error.status != 400:
                raise
            told = server.ask(LlamaServer.path, {**body, "prompt": list(ids)})
        told = told[0] if isinstance(told, list) and told else told
        chosen = told.get("generation_settings") if isinstance(told, Mapping) else None
        grammar = str(chosen.get("grammar", "")) if isinstance(chosen, Mapping) else ""
        return _LARK if grammar.startswith(LLGUIDANCE) else ("gbnf", "schema")

    path = _text(props.get("model_path"))
    return ReportedModel(
        id=str(entry["id"]),
        files=path if path and Path(path).is_file() else None,  # on this machine
        context=_whole(settings.get("n_ctx")) or _whole(meta.get("n_ctx")),
        make_api=LlamaServer,
        tokenized=tokenized,
        size=_whole(meta.get("n_vocab")),
        lanes=_whole(props.get("total_slots")) or 1,
        takes=takes,
    )


def _look_at_vllm(server: Server, model: str | None) -> ReportedModel:
    entry = _entry(server, model)
    return ReportedModel(
        id=str(entry["id"]),
        files=_text(entry.get("root")),
        context=_whole(entry.get("max_model_len")),
        lanes=_LANES,
        make_api=VllmTokens if _offers(server, VllmTokens.path) else VllmCompletions,
        tokenized=_tokenizer(server, entry["id"], "/tokenize"),
        takes=lambda ids: ("core", "schema"),
    )


def _look_at_sglang(server: Server, model: str | None) -> ReportedModel:
    entry = _entry(server, model)
    told = _told(server, "/model_info") or _told(server, "/get_model_info")

    def takes(ids: Sequence[int]) -> Collection[Form]:
        settings = _told(server, "/server_info") or _told(server, "/get_server_info")
        return _OF_BACKENDS.get(str(settings.get("grammar_backend")), ("schema",))

    files = (told.get("tokenizer_path"), told.get("model_path"), entry.get("root"))
    return ReportedModel(
        id=str(entry["id"]),
        files=next(filter(None, map(_text, files)), None),
        context=_whole(entry.get("max_model_len")),
        lanes=_LANES,
        make_api=Sglang,
        tokenized=_tokenizer(server, entry["id"], "/v1/tokenize"),
        takes=takes,
    )


def _tokenizer(server: Server, model: str, path: str) -> Callable[[str], Sequence[int]] | None:
    """The server's own tokenizer; None where it does not offer it at this path."""
    if not _offers(server, path):
        return None
    return lambda text: _tokens(server, path, {"model": model, "prompt": text, "add_special_tokens": False})


_LOOKS: Mapping[str, Callable[[Server, str | None], ReportedModel]] = {
    "llama-server": _look_at_llama_server,
    "vllm": _look_at_vllm,
    "sglang": _look_at_sglang,
}


def _entry(server: Server, model: str | None) -> Mapping[str, Any]:
    """The model of that name among those that are served; the only one, if none is named."""
    served = server.models()
    if not served:
        raise UnknownModel(f"{server.url} does not say which models it has: is it another kind of server?")
    if model is None and len(served) == 1:
        return next(iter(served.values()))
    if model in served:
        return served[model]
    said = f"no model {quoted(model)}" if model else "several models: name one in the address"
    raise UnknownModel(f"{server.url} has {said}: there are {listed(served)}")


def _told(server: Server, path: str) -> Mapping[str, Any]:
    """What a server says at an address that not every version has."""
    try:
        told = server.ask(path)
    except ServerRefused as error:
        if error.status == 401:
            raise
        return {}
    return told if isinstance(told, Mapping) else {}


def _offers(server: Server, path: str) -> bool:
    """Whether there is something at that address: an empty request is refused, and not unknown.

    The key has been accepted when the models were listed. So 403 is about the address: vLLM says it of what
    it is to be started with `--enable-scale-out` for.
    """
    try:
        server.ask(path, {})
    except ServerRefused as error:
        if error.status == 401:
            raise
        return error.status not in (403, 404, 405, 501)
    return True


def _tokens(server: Server, path: str, body: Mapping[str, Any]) -> Sequence[int]:
    told = server.ask(path, body)
    ids = told.get("tokens") if isinstance(told, Mapping) else None
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise StreamBroken(
            f"{server.url} tokenizes to something else than ids: is it another kind of server?"
        )
    return ids


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
