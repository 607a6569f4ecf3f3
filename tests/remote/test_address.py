"""Addresses of models on servers: what they mean, and which are none."""

from __future__ import annotations

import pytest

from localagent.errors import UsageError
from localagent.remote.address import Address, is_address, read_address


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("vllm://127.0.0.1:8000/m", Address("vllm", "http://127.0.0.1:8000", "m")),
        ("vllm://localhost", Address("vllm", "http://localhost:8000", None)),
        ("sglang://box.lan", Address("sglang", "https://box.lan:30000", None)),
        ("sglang+http://box.lan/", Address("sglang", "http://box.lan:30000", None)),
        ("llama-server://[::1]:9000", Address("llama-server", "http://[::1]:9000", None)),
        ("llama-server+https://127.0.0.1", Address("llama-server", "https://127.0.0.1:8080", None)),
        ("vllm://h:1/LiquidAI/LFM2-1.2B", Address("vllm", "https://h:1", "LiquidAI/LFM2-1.2B")),
        ("vllm://h:1/a%20b", Address("vllm", "https://h:1", "a b")),
        ("openai://api.example.org/m", Address("openai", "https://api.example.org:443", "m")),
        ("openai://h/api/v1/a/b", Address("openai", "https://h:443/api", "a/b")),
        ("openai://h/v1/", Address("openai", "https://h:443", None)),
        ("openai+http://h/m", Address("openai", "http://h:80", "m")),
        ("openai+https://127.0.0.1:8443/m", Address("openai", "https://127.0.0.1:8443", "m")),
        ("vllm://h:1/v1/m", Address("vllm", "https://h:1", "v1/m")),
        ("vllm://h:1/a://b", Address("vllm", "https://h:1", "a://b")),
    ],
)
def test_addresses(text, means):
    assert is_address(text)
    assert read_address(text) == means


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("vllm://", "is none of a model on a server"),
        ("vllm://h:x/m", "is none of a model on a server"),
        ("vllm://[::1/m", "is none of a model on a server"),
        ("vllm://h/m?x=1", "is none of a model on a server"),
        ("vllm+ftp://h/m", "choose vllm+http or vllm+https"),
        ("vllm://me:secret@h/m", "put the key into LOCALAGENT_API_KEY"),
        ("tgi://h/m", "no kind of server tgi: there are vllm, sglang, llama-server, openai"),
    ],
)
def test_what_is_no_address(text, says):
    with pytest.raises(UsageError) as raised:
        read_address(text)
    assert says in str(raised.value)
    assert "secret" not in str(raised.value)


def test_names_and_paths_are_no_addresses():
    for text in (
        "lfm2-nano",
        "vllm",
        "a://vllm://b",
        "./vllm:",
        "http://127.0.0.1:8080",
        "hf:owner/name",
        None,
    ):
        assert not is_address(text)
