"""Reads what belongs to a model's tokenizer in a folder that is laid out as on Hugging Face.

tokenizer.json, and where they are there tokenizer_config.json, special_tokens_map.json, config.json,
generation_config.json and the chat template. What cannot be read is InvalidWeights, in one line that names
the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localagent.errors import InvalidWeights
from localagent.hosts.weights import regular_size

_MOST_JSON = 64 << 20  # the largest tokenizers have half of that


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The parsed JSON files of a folder; an absent optional one is empty."""

    path: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tokenizer: Mapping[str, Any]
    tokenizer_config: Mapping[str, Any]
    special_tokens: Mapping[str, Any]
    chat_template: str | None

    @property
    def architecture(self) -> str:
        """config.json's model_type; empty if there is none."""
        return str(self.config.get("model_type", ""))

    @property
    def context_length(self) -> int | None:
        """How many tokens the model was trained for, where the folder says so."""
        for config in (self.config, self.config.get("text_config")):
            length = config.get("max_position_embeddings") if isinstance(config, Mapping) else None
            if isinstance(length, int) and length > 0:
                return length
        return None


def read_tokenizer_files(path: Path) -> TokenizerFiles:
    """The files in the folder `path`. Raises InvalidWeights."""
    tokenizer_config = read_optional(path / "tokenizer_config.json")
    return TokenizerFiles(
        path=path,
        config=read_optional(path / "config.json"),
        generation=read_optional(path / "generation_config.json"),
        tokenizer=read_json(path / "tokenizer.json", "the model needs one: convert it again"),
        tokenizer_config=tokenizer_config,
        special_tokens=read_optional(path / "special_tokens_map.json"),
        chat_template=_find_template(path, tokenizer_config),
    )


def _find_template(path: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The chat template: a file of its own goes before the tokenizer's."""
    file = path / "chat_template.jinja"
    if file.exists():
        return _text(file)
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default") or named.get("tool_use")
    if template is None:
        template = read_optional(path / "chat_template.json").get("chat_template")
    return template if isinstance(template, str) else None


def read_optional(file: Path) -> dict[str, Any]:
    """What is in the file; nothing if there is none. Raises InvalidWeights."""
    return read_json(file, "") if file.exists() else {}


def read_json(file: Path, absent: str) -> dict[str, Any]:
    """The object in the file. `absent`: what to say if there is none. Raises InvalidWeights."""
    if not file.exists():
        raise InvalidWeights(f"{file}: missing; {absent}")
    try:
        value = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise InvalidWeights(f"{file}: not JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise InvalidWeights(f"{file}: not a JSON object")
    return value


def _text(file: Path) -> str:
    regular_size(file, _MOST_JSON)
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidWeights(f"{file}: not UTF-8") from error
    except OSError as error:
        raise InvalidWeights(f"{file}: {error.strerror or error}") from error
