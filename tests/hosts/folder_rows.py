"""MLX folders with one thing wrong, made of a sound one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Row = tuple[str, Callable[[Path], object]]
"""A name, and what to do to a copy of the folder."""
NUMBERS: tuple[Any, ...] = (
    -1,
    0,
    1,
    2,
    3,
    7,
    1000,
    1 << 20,
    1 << 31,
    (1 << 32) - 1,
    1 << 63,
    1 << 200,
    0.5,
    1e-40,
    1e38,
)
ODD: tuple[Any, ...] = (None, True, "", "128", [], [1], {}, float("nan"), float("inf"), -float("inf"))
_RAW = {
    "a number of 5,000 digits": "9" * 5000,
    "1e999": "1e999",
    "a list in 300 lists": "[" * 300 + "]" * 300,
}
JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
FILES = (
    *JSON_FILES,
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "hf_quant_config.json",
)
FILES += ("model.safetensors", "model-2.safetensors", "other.safetensors", "model.safetensors.index.json")


def copy(sound: Path, folder: Path) -> Path:
    """A fresh copy to spoil."""
    shutil.rmtree(folder, ignore_errors=True)
    return shutil.copytree(sound, folder)


def rows(sound: Path) -> Iterator[Row]:
    """Everything that can be wrong."""
    config = json.loads((sound / "config.json").read_text())
    yield from of_config(config)
    yield from of_safetensors(sound / "model.safetensors")
    yield from of_tokenizer(json.loads((sound / "tokenizer.json").read_text()))
    yield from of_files()


# -- config.json --------------------------------------------------------------------------------------


def of_config(config: dict[str, Any]) -> Iterator[Row]:
    """Each value changed, removed or of another type, and values that the file has not."""
    for key, value in config.items():
        yield f"config {key} removed", _take("config.json", key)
        for other in (*NUMBERS, *ODD):
            yield f"config {key} = {other!r:.30}", put("config.json", key, other)
        for name, text in _RAW.items():
            yield f"config {key} = {name}", _put_raw("config.json", key, text)
        if isinstance(value, list):
            for changed in (value[:-1], value * 2, value * 100_000, [value], [7] * len(value)):
                yield f"config {key} of {len(changed)}: {changed!r:.30}", put("config.json", key, changed)
    for key in ("head_dim", "sliding_window", "num_layers", "n_layers", "num_experts", "full_attn_idxs"):
        for other in (*NUMBERS, *ODD):
            yield f"config {key} added = {other!r:.30}", put("config.json", key, other)
    for quantization in _quantizations():
        for key in ("quantization", "quantization_config"):
            yield f"config {key} = {quantization!r:.80}", put("config.json", key, quantization)
    for rope in (
        {"rope_theta": 0},
        {"rope_theta": "x"},
        {"rope_theta": float("nan")},
        {"type": "yarn", "factor": 0},
    ):
        yield f"config rope_parameters = {rope}", put("config.json", "rope_parameters", rope)
        yield f"config rope_scaling = {rope}", put("config.json", "rope_scaling", rope)
    for text in ({"num_hidden_layers": 1_000_000}, {"hidden_size": 0}, [], {"text_config": {}}):
        yield f"config text_config = {text}", put("config.json", "text_config", text)
    for kind in (
        "llama",
        "qwen2",
        "gemma3_text",
        "mamba",
        "mixtral",
        "deepseek_v3",
        "lfm2_moe",
        "cache",
        "base",
    ):
        yield f"config model_type = {kind}", put("config.json", "model_type", kind)
        yield (
            f"config model_type = {kind} with a million layers",
            _all(put("config.json", "model_type", kind), put("config.json", "num_hidden_layers", 10**6)),
        )


def _quantizations() -> Iterator[Any]:
    yield from (None, 1, "x", [], {}, {"bits": 4}, {"group_size": 64})
    for size in (-1, 0, 1, 7, 32, 64, 1 << 31, 1 << 63, None, "x", 0.5):
        yield {"group_size": size, "bits": 4}
    for bits in (-1, 0, 1, 4, 7, 9, 64, 1 << 31, None, "x", 0.5):
        yield {"group_size": 64, "bits": bits}
    yield {"group_size": 64, "bits": 4, "mode": "x"}
    yield {"group_size": 64, "bits": 4, "model.embed_tokens": {"group_size": 0, "bits": 0}}
    for method in (
        "bitnet",
        "mxfp4",
        "mxfp8",
        "fp8",
        "compressed-tensors",
        "modelopt",
        "awq",
        "gptq",
        "x",
        1,
    ):
        yield {"quant_method": method}


# -- safetensors --------------------------------------------------------------------------------------


def of_safetensors(file: Path) -> Iterator[Row]:
    """Each field of a few tensors, and the frame around all of them."""
    size = int.from_bytes(file.read_bytes()[:8], "little")
    header = json.loads(file.read_bytes()[8 : 8 + size])
    names = [name for name in header if "layers.0" in name or "layers.1.self" in name or "embed" in name]
    for name in names:
        for field, values in _tensor(header, name):
            for value in values:
                yield f"{name} {field} = {value!r:.40}", _retensored(name, field, value)
        yield f"{name} removed", _retensored(name, None, None)
        yield f"{name} a list", _retensored(name, None, [1])
    for length in (0, 1, size - 1, size + 1, 100 << 20, 1 << 63, (1 << 64) - 1):
        yield f"header of {length:,} bytes", _relength(length)
    for name in (
        "",
        "x",
        "model.layers.999999.x",
        "model.layers.-1.x",
        "a.b.c.d",
        "\ud800",
        "n" * 100_000,
        "__proto__",
    ):
        extra = {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]}
        yield f"a tensor {name!r:.30} more", with_tensors({name: extra})
    yield (
        "100,000 tensors more",
        with_tensors(
            {f"t{n}": {"dtype": "F16", "shape": [0], "data_offsets": [0, 0]} for n in range(100_000)}
        ),
    )
    for value in (1, "x", {"format": 1}, {"format": "pt", "x": ["y"]}, {"format": "mlx"}):
        yield f"__metadata__ = {value}", with_tensors({"__metadata__": value})
    yield "one name twice", _reheadered(lambda text: text.replace('"model.layers.0.', '"model.layers.1.', 1))
    yield "spaces before", _reheadered(lambda text: "   " + text)
    yield "rubbish behind", _reheadered(lambda text: text + "}")
    yield "deep JSON", _reheadered(lambda text: text[:-1] + ',"deep":' + "[" * 5000 + "]" * 5000 + "}")
    yield "very deep JSON", _reheadered(lambda text: text[:-1] + ',"deep":' + "[" * 10**6 + "]" * 10**6 + "}")


def _tensor(header: dict[str, Any], name: str) -> Iterator[tuple[str, list[Any]]]:
    shape, (begin, end) = header[name]["shape"], header[name]["data_offsets"]
    sizes = (0, 1, -1, 2, 1 << 31, 1 << 32, 1 << 62, 1 << 63, 1 << 64, 0.5, "1", None, True)
    yield "shape", [[*shape[:-1], size] for size in sizes] + [[size, *shape[1:]] for size in sizes]
    yield (
        "shape",
        [[], [*shape, 1], [1, *shape], [1 << 32, 1 << 32], [1] * 5000, shape[::-1], None, "x", {}, [[1]]],
    )
    yield (
        "dtype",
        ["F32", "BF16", "F64", "I8", "U8", "BOOL", "I64", "U32", "F8_E4M3", "C64", "x", "", None, 1, []],
    )
    offsets: list[Any] = [
        [end, begin],
        [begin + 1, end],
        [begin, end - 1],
        [begin + 2, end + 2],
        [0, end],
        [begin, 1 << 63],
    ]
    offsets += [
        [0, end - begin],
        [-2, end],
        [begin, 10**30],
        [0.0, 2.0],
        ["0", "2"],
        [begin],
        [begin, end, end],
        None,
        "x",
        {},
    ]
    yield "data_offsets", offsets


# -- tokenizer.json and the rest ----------------------------------------------------------------------


def of_tokenizer(tokenizer: dict[str, Any]) -> Iterator[Row]:
    """Each part removed, of another type or with wrong ids."""
    for key in tokenizer:
        yield f"tokenizer {key} removed", _take("tokenizer.json", key)
        for other in (None, 1, "x", [], {}, [{}], {"type": "x"}, {"type": 1}):
            yield f"tokenizer {key} = {other!r:.30}", put("tokenizer.json", key, other)
    first = tokenizer["added_tokens"][0]
    for field in first:
        for other in (*NUMBERS, *ODD, "a" * 100_000, "e", "<|im_end|>", "\ud800", "\0"):
            added = [{**first, field: other}, *tokenizer["added_tokens"][1:]]
            yield f"added token {field} = {other!r:.30}", put("tokenizer.json", "added_tokens", added)
    model = tokenizer["model"]
    for key, value in model.items():
        for other in (
            *NUMBERS[:9],
            *ODD,
            [[]],
            [["a"]],
            [["a", "b"]] * 10,
            {"a": -1},
            {"a": 1 << 31},
            {"a": 1 << 40},
        ):
            yield (
                f"tokenizer model {key} = {other!r:.30}",
                put("tokenizer.json", "model", {**model, key: other}),
            )
        if isinstance(value, dict):
            for number in (-1, 5, 1024, 1 << 31, (1 << 32) - 1):
                changed = {**value, next(reversed(value)): number}
                yield (
                    f"tokenizer model {key} ends in {number}",
                    put("tokenizer.json", "model", {**model, key: changed}),
                )
    for kind in ("BPE", "Unigram", "WordPiece", "WordLevel", "x"):
        yield f"tokenizer model type {kind}", put("tokenizer.json", "model", {**model, "type": kind})
    for pattern in (
        {"Regex": "(a+)+$"},
        {"Regex": "("},
        {"String": ""},
        {"Regex": ""},
        {"Regex": "(?:a{1,9999}){1,9999}"},
    ):
        split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
        yield f"tokenizer splits at {pattern}", put("tokenizer.json", "pre_tokenizer", split)
        exchange = {"type": "Replace", "pattern": pattern, "content": "aa"}
        yield f"tokenizer replaces {pattern}", put("tokenizer.json", "normalizer", exchange)
    for key in ("bos_token", "eos_token", "unk_token", "add_bos_token", "chat_template"):
        for other in (
            1,
            True,
            "",
            "x",
            [],
            {},
            {"content": 1},
            "<|im_end|>",
            "a" * 100_000,
            "{{",
            "{% for x in 1 %}",
        ):
            yield f"tokenizer_config {key} = {other!r:.30}", put("tokenizer_config.json", key, other)
    for other in (-1, 1 << 40, "x", [], [1, "x", None], {}, True, 0.5):
        for key in ("eos_token_id", "bos_token_id"):
            yield f"generation_config {key} = {other!r}", put("generation_config.json", key, other)


def of_files() -> Iterator[Row]:
    """What stands where a file should."""
    for name in FILES:
        yield f"{name} a pipe", _replaced(name, os.mkfifo)
        yield f"{name} a device", _replaced(name, lambda path: path.symlink_to("/dev/zero"))
        yield f"{name} a folder", _replaced(name, Path.mkdir)
        yield f"{name} a link to itself", _replaced(name, lambda path: path.symlink_to(path.name))
        yield f"{name} a link to nowhere", _replaced(name, lambda path: path.symlink_to("nowhere"))
        yield f"{name} empty", _replaced(name, Path.touch)
        yield f"{name} huge", _replaced(name, lambda path: (path.touch(), os.truncate(path, 40 << 30)))
        yield f"{name} a deep list", _replaced(name, lambda path: path.write_text("[" * 10**6))
        yield (
            f"{name} a deep object",
            _replaced(name, lambda path: path.write_text('{"a":' * 10**6 + "1" + "}" * 10**6)),
        )
        yield (
            f"{name} a long text",
            _replaced(name, lambda path: path.write_text('{"a":"' + "x" * (60 << 20) + '"}')),
        )


def _all(*changes: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [change(folder) for change in changes]


def _edit(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        file = folder / name
        value = json.loads(file.read_text()) if file.exists() else {}
        change(value)
        file.write_text(json.dumps(value))

    return edit


def put(name: str, key: str, value: Any) -> Callable[[Path], object]:
    return _edit(name, lambda parsed: parsed.update({key: value}))


def _put_raw(name: str, key: str, text: str) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        put(name, key, "<here>")(folder)
        (folder / name).write_text((folder / name).read_text().replace('"<here>"', text))

    return edit


def _take(name: str, key: str) -> Callable[[Path], object]:
    return _edit(name, lambda parsed: parsed.pop(key))


def _replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return edit


def _reheadered(change: Callable[[str], str]) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        file = folder / "model.safetensors"
        data = file.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = change(data[8 : 8 + length].decode()).encode("utf-8", "surrogatepass")
        file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])

    return edit


def _relength(length: int) -> Callable[[Path], object]:
    def edit(folder: Path) -> None:
        with (folder / "model.safetensors").open("r+b") as file:
            file.write(length.to_bytes(8, "little"))

    return edit


def with_tensors(more: dict[str, Any]) -> Callable[[Path], object]:
    return _reheadered(lambda text: json.dumps({**json.loads(text), **more}))


def _retensored(name: str, field: str | None, value: Any) -> Callable[[Path], object]:
    def change(text: str) -> str:
        header = json.loads(text)
        if field is not None:
            header[name][field] = value
        elif value is None:
            del header[name]
        else:
            header[name] = value
        return json.dumps(header)

    return _reheadered(change)
