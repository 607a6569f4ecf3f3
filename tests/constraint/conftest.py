"""Real vocabularies, loaded without their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from localagent.hosts.llamacpp.library import library
    from localagent.hosts.llamacpp.vocabulary import LlamaCppVocabulary

    native = library()
    options = native.llama_model_default_params()
    options.vocab_only = True
    model = native.llama_model_load_from_file(str(path).encode(), options)
    try:
        yield LlamaCppVocabulary(native, native.llama_model_get_vocab(model))
    finally:
        native.llama_model_free(model)


@pytest.fixture(scope="session")
def vocabularies(gguf: Path, nano: dict[str, Path]) -> Iterator[dict[str, Any]]:
    """SmolLM2's, with 49,152 tokens and none of LFM2's markers, and lfm2-nano's, which has them."""
    with ExitStack() as opened:
        yield {
            "smollm2": opened.enter_context(_opened(gguf)),
            "nano": opened.enter_context(_opened(nano["llamacpp"])),
        }


@pytest.fixture(scope="session")
def vocabulary(vocabularies: dict[str, Any]) -> Any:
    """SmolLM2's."""
    return vocabularies["smollm2"]


@pytest.fixture(scope="session")
def accepts(vocabulary: Any) -> Callable[[Any, str], bool]:
    """Whether a grammar accepts a text as a whole."""
    from localagent.constraint.matching import matcher_factory
    from tests.constraint.drawing import takes

    return lambda grammar, text: takes(vocabulary, matcher_factory(vocabulary).compile(grammar.text), text)
