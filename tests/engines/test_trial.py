"""What lfm2-nano must write is far from anything else it could write, so that rounding cannot change it."""

from __future__ import annotations

import pytest

pytest.importorskip("llama_cpp")

from localagent.engines.trial import GREETING, WEATHER, ask
from localagent.hosts.llamacpp import LlamaCppHost
from localagent.hosts.llamacpp.library import quantize
from localagent.hosts.sampling import Sampling
from localagent.nano import GGUF

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("kind", [None, "Q8_0", "Q4_0"])
@pytest.mark.parametrize("question", [WEATHER, GREETING], ids=["weather", "greeting"])
def test_the_next_best_token_is_never_close(tmp_path, kind, question):
    path = GGUF if kind is None else quantize(GGUF, tmp_path / "quantized.gguf", kind)
    with LlamaCppHost.load(path, context=512, threads=1) as host:
        prompt = host.render([{"role": "user", "content": question.text}], tools=question.tools)
        generation = host.generate(prompt, Sampling(max_tokens=40, logprobs=2))
        tokens = list(generation)
    assert "".join(token.text for token in tokens) == question.wanted
    for token in tokens:
        (_, best), (_, second) = token.logprobs.top[:2]
        assert best - second > 1.0, (token.text, best, second)


def test_the_host_is_closed_afterwards():
    host = LlamaCppHost.load(GGUF, context=512, threads=1)
    assert ask(host, GREETING) == GREETING.wanted
    with pytest.raises(Exception, match="closed"):
        host.tokenize("x", special=False)
