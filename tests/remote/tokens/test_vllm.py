"""A real vLLM, by hand: start it as `record.py` says, and name it.

VLLM=127.0.0.1:8000 python -m pytest tests/remote/tokens/test_vllm.py
"""

from __future__ import annotations

import os
import re
import threading

import pytest

from localagent.errors import ConstraintFailed, DialectMismatch
from localagent.model import Model, load
from localagent.nano import MLX
from localagent.remote.tokens.apis import VllmCompletions, VllmTokens
from localagent.turn import Done
from tests.mcp.conftest import eventually
from tests.remote.tokens.record import TOOLS

PLACE = os.environ.get("VLLM", "")
pytestmark = pytest.mark.skipif(not PLACE, reason="no vLLM is named by VLLM=host:port")
SCHEMA = {"type": "object", "properties": {"n": {"enum": [12, 19]}}, "required": ["n"]}
ANSWER = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
WISHES = [
    {"tool_choice": "required"},
    {"tool_choice": "get_weather"},
    {"tool_choice": "none"},
    {"parallel_tool_calls": False},
    {"strict": True},
    {"response_format": {"type": "json_object"}},
    {"response_format": ANSWER, "tools": None},
]


@pytest.fixture(params=[VllmTokens, VllmCompletions])
def model(request, monkeypatch) -> Model:
    found = load(f"vllm://{PLACE}/nano", tokenizer=MLX)
    monkeypatch.setattr(found.host, "_make_api", request.param)
    return found


def running(model: Model) -> float:
    with model.host.server.send("GET", "/metrics") as answer:
        [count] = re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", answer.body().decode(), re.MULTILINE)
    return float(count)


def test_the_texts_agree_with_their_tokens(model):
    done = list(model.stream("What is the weather in Paris?", tools=TOOLS, temperature=0, max_tokens=60))[-1]
    assert isinstance(done, Done)
    assert (
        "".join(model.host.pieces.piece(token).data.decode() for token in done.token_ids) == done.message.raw
    )
    assert done.message.usage.output == len(done.token_ids)
    again = list(model.stream("What is the weather in Paris?", tools=TOOLS, temperature=0, max_tokens=60))[-1]
    assert again.token_ids == done.token_ids


@pytest.mark.parametrize("wish", WISHES, ids=str)
def test_what_it_is_told_to_hold_it_holds(model, wish):
    """XGrammar lets a marker stand in a string, where it ends nothing: then the turn ends with an error."""
    for prompt in ("What is the weather in Paris?", "Say hello.", "What is 12 plus 7?"):
        try:
            message = model.respond(prompt, **{"tools": TOOLS, "temperature": 0, "max_tokens": 60, **wish})
        except ConstraintFailed as error:
            assert re.search(r"wrote '<.*>', which may not come there", str(error)), error
            continue
        names = [call.name for call in message.tool_calls]
        if wish.get("tool_choice") in ("required", "get_weather") and message.stop_reason != "length":
            assert set(names) == {"get_weather"}
        if wish.get("tool_choice") == "none":
            assert not names
        assert not message.malformed_tool_call_blocks or message.stop_reason == "length"


def test_who_leaves_ends_the_request_there(model):
    flag = threading.Event()
    for _ in model.stream("Tell me a story.", cancel=flag, max_tokens=1500, temperature=2.0, seed=3):
        flag.set()
    eventually(lambda: running(model) == 0)


def test_another_tokenizer_is_refused(tmp_path):
    for each in MLX.iterdir():
        if each.suffix != ".safetensors":
            (tmp_path / each.name).write_bytes(each.read_bytes())
    told = (tmp_path / "tokenizer.json").read_text()
    assert '"The"' in told
    (tmp_path / "tokenizer.json").write_text(told.replace('"The"', '"Thx"'))
    with pytest.raises(DialectMismatch):
        load(f"vllm://{PLACE}/nano", tokenizer=tmp_path)
