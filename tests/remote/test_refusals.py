"""What a server says when it does not answer becomes one error, in one line that says what to do."""

from __future__ import annotations

import pytest

from localagent.errors import ContextOverflow, ServerRefused, StreamBroken, UnknownModel
from localagent.remote.refusals import error_in, overflow_in, refusal, stream_error

URL = "http://h:1"


@pytest.mark.parametrize(
    ("body", "said", "code"),
    [
        (None, "", ""),
        ([{"error": "no"}], "", ""),
        ({}, "", ""),
        ({"error": "it\nfailed."}, "it failed", ""),
        ({"error": None, "detail": "Not Found"}, "Not Found", ""),
        ({"error": "", "detail": "", "message": "no"}, "no", ""),
        ({"error": {"message": "no", "code": "c", "type": "t"}}, "no", "c"),
        ({"error": {"message": "no", "code": 404, "type": "t"}}, "no", "t"),
        ({"error": {"message": "no", "code": 404}}, "no", ""),
        ({"error": {"code": "c"}}, '{"code": "c"}', "c"),
        ({"detail": [{"loc": ["a"]}]}, '[{"loc": ["a"]}]', ""),
        ({"error": "x" * 400}, "x" * 297, ""),
    ],
)
def test_what_a_server_says_went_wrong(body, said, code):
    assert error_in(body) == (said, code)


SAID = "the server said so"
BODY = {"error": f"{SAID}."}
PATH = "/v1/x"


@pytest.mark.parametrize(
    ("status", "body", "headers", "keyed", "says", "wait"),
    [
        (401, BODY, {}, True, "refuses the key in LOCALAGENT_API_KEY (401): correct it", None),
        (403, BODY, {}, True, "refuses the key in LOCALAGENT_API_KEY (403): correct it", None),
        (401, BODY, {}, False, "wants a key (401): put it into LOCALAGENT_API_KEY", None),
        (403, BODY, {}, False, "wants a key (403): put it into LOCALAGENT_API_KEY", None),
        (404, BODY, {}, False, f"refuses /v1/x (404): {SAID}: correct the model's name or the address", None),
        (404, {"detail": "Not Found"}, {}, False, "has no /v1/x (404): correct the address, or give one of another server", None),
        (405, None, {}, True, "has no /v1/x (405): correct the address, or give one of another server", None),
        (429, BODY, {"retry-after": "7"}, True, f"cannot answer now (429): {SAID}: ask again in 7 seconds", 7),
        (503, None, {"retry-after": "99999"}, True, "cannot answer now (503): ask again in 99999 seconds", 99_999),
        (503, BODY, {"retry-after": "100000"}, True, f"cannot answer now (503): {SAID}: ask again later", None),
        (429, BODY, {"retry-after": "soon"}, True, f"cannot answer now (429): {SAID}: ask again later", None),
        (429, None, {}, True, "cannot answer now (429): ask again later", None),
        (300, BODY, {"location": "http://b/"}, True, "sends its clients to http://b/ (300): use that address", None),
        (399, BODY, {"location": "a" * 300}, True, f"sends its clients to '{'a' * 199} (399): use that address", None),
        (500, BODY, {"retry-after": "3"}, True, f"failed (500): {SAID}: its log says more", 3),
        (599, None, {}, True, "failed (599): its log says more", None),
        (500, {"error": "no: its log says more"}, {}, True, "failed (500): no: its log says more", None),
        (400, BODY, {}, True, f"refuses the request (400): {SAID}: change what it names", None),
        (422, None, {}, True, "refuses the request (422): change what it names", None),
        (499, None, {}, True, "refuses the request (499): change what it names", None),
        (201, None, {}, True, "refuses the request (201): change what it names", None),
        (402, None, {}, True, "refuses the request (402): change what it names", None),
    ],
)  # fmt: skip
def test_a_refusal_says_what_to_do(status, body, headers, keyed, says, wait):
    error = refusal(URL, PATH, status, body, lambda name: headers.get(name, ""), keyed)
    assert isinstance(error, ServerRefused)
    assert (str(error), error.status, error.wait) == (f"{URL} {says}", status, wait)


@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_model_that_there_is_not_has_an_error_of_its_own(status):
    for said, text in (("no x.", f"{URL}: no x"), ("", f"{URL} has no such model: see {URL}/v1/models")):
        body = {"error": {"message": said, "code": "model_not_found"}}
        error = refusal(URL, PATH, status, body, lambda name: "", False)
        assert type(error) is UnknownModel
        assert str(error) == (text if said else f"{URL}: {error_in(body)[0]}")


OPENAI = (
    "This model's maximum context length is 4,096 tokens. However, your messages resulted in 5,000 tokens"
)
VLLM = (
    "This model's maximum context length is 99 tokens. However, you requested 100 tokens (90 in the messages"
)
LEAST = "maximum context length is 99 tokens, and your prompt has more than 1,000 input tokens"
LONG = "The decoder prompt (length 120) is longer than the maximum model length of 99. Make sure"


@pytest.mark.parametrize(
    ("body", "prompt", "context", "exact"),
    [
        ({"error": {"n_prompt_tokens": 7, "n_ctx": 5}}, 7, 5, True),
        ({"error": {"message": OPENAI}}, 5000, 4096, True),
        ({"error": OPENAI.replace(". ", ".\n")}, 5000, 4096, True),
        ({"error": {"message": VLLM}}, 100, 99, True),
        ({"error": {"message": LEAST}}, 1000, 99, False),
        ({"detail": LONG}, 120, 99, True),
    ],
)
def test_a_prompt_that_is_too_long_says_both_numbers(body, prompt, context, exact):
    for error in (
        overflow_in(body, error_in(body)[0]),
        refusal(URL, PATH, 400, body, lambda name: "", False),
        stream_error(URL, body),
    ):
        assert isinstance(error, ContextOverflow)
        assert (error.prompt_tokens, error.context, error.exact) == (prompt, context, exact)


@pytest.mark.parametrize(
    "body",
    [
        None,
        {"error": "context length"},
        {"error": {"n_prompt_tokens": 7}},
        {"error": {"n_prompt_tokens": 7, "n_ctx": "5"}},
        {"error": {"n_prompt_tokens": True, "n_ctx": 5}},
        {"n_prompt_tokens": 7, "n_ctx": 5},
    ],
)
def test_all_else_is_none_of_that(body):
    assert overflow_in(body, error_in(body)[0]) is None


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (
            {"message": "no", "code": 400},
            ServerRefused,
            "refuses the request (400): no: change what it names",
        ),
        (
            {"message": "no", "code": 499},
            ServerRefused,
            "refuses the request (499): no: change what it names",
        ),
        ({"message": "no", "code": 399}, StreamBroken, "broke the answer off: no: ask again"),
        ({"message": "no", "code": 500}, StreamBroken, "broke the answer off: no: ask again"),
        ({"message": "no", "code": "400"}, StreamBroken, "broke the answer off: no: ask again"),
        ("no", StreamBroken, "broke the answer off: no: ask again"),
        ("", StreamBroken, "broke the answer off: it says no reason: ask again"),
    ],
)
def test_what_a_server_says_in_the_midst_of_a_stream(error, kind, says):
    found = stream_error(URL, {"error": error})
    assert type(found) is kind
    assert str(found) == f"{URL} {says}"
    if isinstance(found, ServerRefused):
        assert found.status == error["code"]
