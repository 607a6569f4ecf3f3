"""What a server of tokens is asked before it is used: which model, which tokenizer, how much it takes."""

from __future__ import annotations

import json
import shutil

import pytest

from localagent.errors import (
    ContextOverflow,
    DialectMismatch,
    InvalidWeights,
    ServerRefused,
    StreamBroken,
    TemplateFailed,
    UnknownModel,
    UsageError,
)
from localagent.hosts.protocol import Prompt
from localagent.model import load
from localagent.nano import MLX
from localagent.remote import RemoteModel
from localagent.remote.server import Server
from localagent.remote.tokens import opening
from localagent.remote.tokens.apis import LlamaServer, Sglang, VllmCompletions, VllmTokens
from localagent.remote.tokens.vocabulary import PROBES, read_model_files
from tests.remote.scripted import DONE, chunk, head, scripted, whole

MODEL = {"id": "LiquidAI/nano", "object": "model", "max_model_len": 2048, "root": str(MLX)}
LISTING = {"data": [MODEL]}
REFUSED = whole({"error": {"message": "token_ids is missing"}}, 400)


PROMPT = (
    '<|startoftext|><|im_start|>system\nAnswer in JSON: {"n": 1}.\n<|im_end|>\n<|im_start|>user\n'
    "  12,345 caf\u00e9s? \u6f22\u5b57 \U0001f600\n\n\treturn x<|im_end|>\n<|im_start|>assistant\n"
)
"""The conversation that both sides tokenize, as nano's template writes it."""


def tokenized(change=None):
    """What a server with nano's tokenizer answers to the texts that it is asked for, in order."""
    vocabulary = read_model_files(MLX).vocabulary
    texts = (*PROBES, *list(vocabulary.special.values())[:8])
    answers = [{"tokens": list(vocabulary.tokenize(text, special=True))} for text in (*texts, PROMPT)]
    if change is not None:
        answers[change]["tokens"][-1] += 1
    return [REFUSED, *map(whole, answers)]


def address(server, kind="vllm", model=""):
    return f"{kind}://{server.url.removeprefix('http://')}{model}"


def test_a_vllm_says_which_model_it_has_from_where():
    routes = {"/inference/v1/generate": [REFUSED], "/tokenize": tokenized()}
    with scripted(models=LISTING, routes=routes) as server:
        model = load(address(server))
        assert (model.name, model.host.context, model.dialect.name) == ("nano", 2048, "lfm2")
        assert model.host._make_api is VllmTokens
    with scripted(models=LISTING) as server:
        assert load(address(server, model="/LiquidAI/nano"), context=100, tokenizer=MLX).host.context == 100


def test_a_vllm_without_that_address_gives_ids_with_its_completions():
    disabled = whole({"error": {"message": "Scale-out endpoints are disabled.", "code": 403}}, 403)
    for routes in ({}, {"/inference/v1/generate": [disabled]}):
        with scripted(models=LISTING, routes={"/v1/completions": [REFUSED], **routes}) as server:
            assert load(address(server)).host._make_api is VllmCompletions


@pytest.mark.parametrize(
    ("settings", "meta", "context"),
    # The last one is what the files say.
    [({"n_ctx": 512}, {"n_ctx": 2048}, 512), ({"n_ctx": 0}, {"n_ctx": 1024}, 1024), (None, None, 4096)],
)
def test_a_llama_server_says_how_much_fits_into_one_of_its_lanes(settings, meta, context):
    told = {"model_path": "/nowhere", "total_slots": 3, "default_generation_settings": settings}
    routes = {"/props": [whole(told)], "/tokenize": tokenized()[1:]}
    with scripted(models={"data": [{"id": "m", "meta": meta}]}, routes=routes) as server:
        model = load(address(server, "llama-server"), tokenizer=MLX)
        assert (model.host.context, model.lanes) == (context, 3)


def test_a_sglang_says_it_elsewhere():
    told = {"model_path": "/nowhere", "tokenizer_path": str(MLX)}
    with scripted(models={"data": [{"id": "m"}]}, routes={"/model_info": [whole(told)]}) as server:
        host = load(address(server, "sglang")).host
    assert (host._make_api, host.context) == (Sglang, 4096)


@pytest.mark.parametrize("at", [0, 3, 10, -1])
def test_another_tokenizer_is_refused(at):
    with (
        scripted(models=LISTING, routes={"/tokenize": tokenized(at)}) as server,
        pytest.raises(DialectMismatch) as raised,
    ):
        load(address(server))
    said = str(raised.value)
    assert ("a conversation has other tokens there" in said) == (at == -1)
    assert said.startswith(f"the model at {server.url} has another tokenizer than {MLX}: ")
    assert "\n" not in said


def test_files_of_a_larger_vocabulary_are_refused():
    with (
        scripted(models={"data": [{"id": "m", "meta": {"n_vocab": 3}}]}) as server,
        pytest.raises(DialectMismatch, match="it has 3 tokens, fewer than the files here name"),
    ):
        load(address(server, "llama-server"), tokenizer=MLX)


@pytest.mark.parametrize(
    ("listing", "model", "error", "says"),
    [
        ({"data": []}, "", UnknownModel, "does not say which models it has"),
        ([], "", UnknownModel, "does not say which models it has"),
        ({"data": [{"id": 7}, {}]}, "", UnknownModel, "does not say which models it has"),
        ({"data": [{"id": "a"}, {"id": "b"}]}, "", UnknownModel, "several models: name one in the address"),
        (LISTING, "/other", UnknownModel, "has no model other: there are LiquidAI/nano"),
        ({"data": [{"id": "m"}]}, "", UsageError, "does not say where its model comes from: give tokenizer="),
        ({"data": [{"id": "m", "root": "/no/such"}]}, "", UsageError, "no tokenizer at"),
        (None, "", ServerRefused, "refuses /v1/models (404): not here"),
    ],
)  # fmt: skip
def test_what_cannot_be_opened(listing, model, error, says):
    with scripted(models=listing) as server, pytest.raises(error) as raised:
        load(address(server, model=model))
    assert says in str(raised.value)
    assert str(raised.value).isprintable()


def test_a_tokenizer_that_answers_with_something_else():
    for answer in ({"tokens": "text"}, {"tokens": [1.5]}, []):
        with (
            scripted(models=LISTING, routes={"/tokenize": [REFUSED, whole(answer)]}) as server,
            pytest.raises(StreamBroken, match="tokenizes to something else than ids"),
        ):
            load(address(server))


def test_a_key_that_is_wanted():
    with (
        scripted(models=LISTING, routes={"/tokenize": [whole({"error": "no"}, 401)]}) as server,
        pytest.raises(ServerRefused, match="wants a key"),
    ):
        load(address(server))


def test_files_that_are_damaged(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(MLX, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "tokenizer.json").write_text("{")
    with scripted(models=LISTING) as server, pytest.raises(InvalidWeights, match="not JSON"):
        load(address(server), tokenizer=folder)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {}}}))
    with scripted(models=LISTING) as server, pytest.raises(InvalidWeights, match="unsupported"):
        load(address(server), tokenizer=folder)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"threads": 2}, "threads is an option of models on this machine"),
        ({"backend": "mlx"}, "backend is an option of models on this machine"),
        ({"snapshots": True}, "snapshots is an option of models on this machine"),
        ({"lanes": 2}, "lanes is an option of models on this machine"),
    ],
)
def test_options_of_models_on_this_machine(options, says):
    with pytest.raises(UsageError, match=says):
        load("vllm://127.0.0.1:1/m", **options)


def test_a_tokenizer_is_for_models_elsewhere():
    with pytest.raises(UsageError, match="tokenizer is for a model on a server"):
        load("lfm2-nano", tokenizer=MLX)


def test_a_server_that_parses_calls_itself_gives_a_model_of_another_kind():
    answer = [head(), chunk({"content": "Hello."}), chunk({}, "stop"), DONE]
    with scripted(answer, models={"data": [{"id": "m", "max_model_len": 99}]}) as server:
        model = load(address(server, "openai", "/m"), context=50)
        assert isinstance(model, RemoteModel)
        assert (model.name, model.host.context) == ("m", 50)
        assert model.respond("Hi.").text == "Hello."
    assert server.chats[0]["model"] == "m"


@pytest.mark.parametrize("name", ["dialect", "tokenizer", "backend", "threads", "lanes", "prefix_cache"])
def test_options_that_mean_nothing_to_such_a_server(name):
    with pytest.raises(UsageError, match=f"{name} means nothing to http://127.0.0.1:1") as raised:
        load("openai://127.0.0.1:1/m", **{name: "lfm2"})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "routes", "expected"),
    [
        ("vllm", {}, ("core", "schema")),
        ("sglang", {"/server_info": [whole({"grammar_backend": "llguidance"})]}, ("lark", "schema")),
        ("sglang", {"/get_server_info": [whole({"grammar_backend": "xgrammar"})]}, ("ebnf", "schema")),
        ("sglang", {"/server_info": [whole({"grammar_backend": "none"})]}, ()),
        ("sglang", {}, ("schema",)),
        ("llama-server", {"/completion": [whole({"generation_settings": {"grammar": "%llguidance {}\nstart: x"}})]}, ("lark", "schema")),
        ("llama-server", {"/completion": [whole({"generation_settings": {"grammar": "root ::= x"}})]}, ("gbnf", "schema")),
        ("llama-server", {"/completion": [whole([])]}, ("gbnf", "schema")),
        ("llama-server", {"/completion": [whole([{"generation_settings": {"grammar": "%llguidance {}"}}])]}, ("lark", "schema")),
        ("llama-server", {"/completion": [REFUSED, whole({"generation_settings": {"grammar": "%llguidance {}"}})]}, ("lark", "schema")),
    ],
)  # fmt: skip
def test_what_it_can_be_told_to_hold(kind, routes, expected):
    if kind == "llama-server":
        routes = {"/tokenize": tokenized()[1:], **routes}
    with scripted(models=LISTING, routes=routes) as server:
        host = load(address(server, kind), tokenizer=MLX).host
        prompt = host.raw_prompt("Hi.")
        assert host.takes(prompt) == expected
    asked = [each.body["prompt"] for each in server.asked if "/completion" in each.line]
    assert asked in ([], [[[]]], [[[]], list(prompt.ids)])  # whole only where nothing is refused


def test_the_conversation_is_the_one_that_the_template_here_writes():
    with scripted(models=LISTING, routes={"/tokenize": tokenized()}) as server:
        load(address(server))
    assert [each.body["prompt"] for each in server.asked if each.body and "prompt" in each.body][-1] == PROMPT


class Renders:
    """A host whose conversations have these ids, one after the other; None where its template refuses one."""

    def __init__(self, *prompts):
        self.prompts = [*prompts]
        self.asked = []

    def render(self, conversation):
        self.asked.append([each["role"] for each in conversation])
        ids = self.prompts.pop(0)
        if ids is None:
            raise TemplateFailed("no instructions")
        if not ids:
            raise ContextOverflow(100, 50)
        return Prompt(ids, f"text of {len(ids)}")


OTHER = "a conversation has other tokens there"


@pytest.mark.parametrize(
    ("prompts", "theirs", "wrong"),
    [
        ([(1, 2, 3)], [1, 2, 3], None),
        ([(1, 2, 3)], [2, 3], None),  # no text spells the first one
        ([(1, 2, 3)], [3], OTHER),
        ([(1, 2, 3)], [1, 2], OTHER),
        ([(1, 2, 3)], [1, 2, 4], OTHER),
        ([(1, 2, 3)], [1, 2, 3, 4], OTHER),
        ([None, (1, 2)], [1, 2], None),
        ([(), (1, 2)], [1, 3], OTHER),
        ([None, None], [1], None),  # nothing can be compared
    ],
)
def test_which_prompts_are_the_same(prompts, theirs, wrong):
    host, texts = Renders(*prompts), []
    assert opening._of_a_prompt(host, lambda text: texts.append(text) or theirs) == wrong
    assert host.asked == [["system", "user"], ["user"]][: len(prompts)]
    assert texts == [f"text of {len(ids)}" for ids in prompts if ids]


LOOKS = {
    "vllm": (
        {"root": "owner/name", "max_model_len": 99},
        {"/inference/v1/generate": [REFUSED], "/tokenize": [REFUSED, whole({"tokens": [1]})]},
        ("owner/name", 99, None, 64, VllmTokens),
        {"model": "a/m", "prompt": "Hi.", "add_special_tokens": False},
    ),
    "vllm, an early one": ({"root": "", "max_model_len": 0}, {}, (None, None, None, 64, VllmCompletions), None),
    "sglang": (
        {"root": "owner/other", "max_model_len": 99},
        {"/model_info": [whole({"model_path": "owner/name"})], "/v1/tokenize": [REFUSED, whole({"tokens": [1]})]},
        ("owner/name", 99, None, 64, Sglang),
        {"model": "a/m", "prompt": "Hi.", "add_special_tokens": False},
    ),
    "sglang, an early one": (
        {"root": "owner/other"},
        {"/get_model_info": [whole({"model_path": 7, "tokenizer_path": "owner/name"})]},
        ("owner/name", None, None, 64, Sglang),
        None,
    ),
    "sglang, a silent one": ({"root": "owner/other"}, {}, ("owner/other", None, None, 64, Sglang), None),
    "llama-server": (
        {"meta": {"n_vocab": 300, "n_ctx": 99}},
        {"/props": [whole({"model_path": __file__, "total_slots": 3})], "/tokenize": [whole({"tokens": [1]})]},
        (__file__, 99, 300, 3, LlamaServer),
        {"content": "Hi.", "add_special": False, "parse_special": True},
    ),
    "llama-server, elsewhere": (
        {"meta": {"n_vocab": -1, "n_ctx": True}},
        {"/props": [whole({"model_path": "/nowhere/m.gguf", "default_generation_settings": {"n_ctx": 50}})], "/tokenize": [whole({"tokens": [1]})]},
        (None, 50, None, 1, LlamaServer),
        {"content": "Hi.", "add_special": False, "parse_special": True},
    ),
    "llama-server, a silent one": ({}, {"/tokenize": [whole({"tokens": [1]})]}, (None, None, None, 1, LlamaServer),
        {"content": "Hi.", "add_special": False, "parse_special": True}),
}  # fmt: skip


@pytest.mark.parametrize("kind", LOOKS)
def test_what_a_server_says_of_itself(kind):
    entry, routes, expected, asked = LOOKS[kind]
    look = opening._LOOKS[kind.partition(",")[0]]
    with scripted(models={"data": [{"id": "other"}, {"id": "a/m", **entry}]}, routes=routes) as server:
        found = look(Server.at(server.url), "a/m")
        assert found.id == "a/m"
        assert (found.files, found.context, found.size, found.lanes, found.make_api) == expected
        assert (found.tokenized is None) is (asked is None)
        if found.tokenized is not None:
            assert found.tokenized("Hi.") == [1]
            assert server.asked[-1].body == asked


@pytest.mark.parametrize(
    ("status", "offers"),
    [(400, True), (422, True), (500, True), (403, False), (404, False), (405, False), (501, False)],
)
def test_what_is_refused_is_there(status, offers):
    with scripted(routes={"/x": [whole({"error": "no"}, status)], "/y": [whole({})]}) as server:
        assert opening._offers(Server.at(server.url), "/x") is offers
        assert opening._offers(Server.at(server.url), "/y") is True


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (whole({"a": 1}), {"a": 1}),
        (whole([1]), {}),
        (whole({}, 404), {}),
        (whole({}, 400), {}),
        (whole({}, 500), {}),
    ],
)
def test_what_not_every_version_says(answer, told):
    with scripted(routes={"/x": [answer]}) as server:
        assert opening._told(Server.at(server.url), "/x") == told


@pytest.mark.parametrize("ask", [opening._told, opening._offers])
def test_a_key_that_is_missing_is_told_wherever_it_is_missed(ask):
    with (
        scripted(routes={"/x": [whole({"error": "no"}, 401)]}) as server,
        pytest.raises(ServerRefused, match="wants a key"),
    ):
        ask(Server.at(server.url), "/x")
