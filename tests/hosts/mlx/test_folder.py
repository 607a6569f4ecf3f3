"""Reading a folder of weights: each file that is wrong is named, and the numbers are judged at their limits."""

from __future__ import annotations

import json
import struct

import pytest

from localagent.errors import InvalidWeights
from localagent.hosts import tokenizer_files as module
from localagent.hosts.mlx.folder import RANGES, fault, read_folder

NAN = float("nan")
CONFIG = {"model_type": "lfm2", "num_hidden_layers": 2}


def safetensors(*names: str) -> bytes:
    entries = {
        name: {"dtype": "F16", "shape": [1], "data_offsets": [2 * at, 2 * at + 2]} for at, name in enumerate(names)
    }  # fmt: skip
    head = json.dumps(entries).encode()
    return struct.pack("<Q", len(head)) + head + bytes(2 * len(names))


@pytest.fixture
def sound(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text('{"model": {}}')
    (tmp_path / "model.safetensors").write_bytes(safetensors("model.layers.0.w", "model.layers.1.w"))
    return tmp_path


def refused(path) -> str:
    with pytest.raises(InvalidWeights) as caught:
        read_folder(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_what_is_read(sound):
    for name in ("generation_config", "tokenizer_config", "special_tokens_map"):
        (sound / f"{name}.json").write_text(json.dumps({"of": name}))
    read = read_folder(sound)
    assert read.path == sound
    assert read.architecture == "lfm2"
    assert read.config == CONFIG
    assert read.tokenizer == {"model": {}}
    assert [read.generation, read.tokenizer_config, read.special_tokens] == [
        {"of": name} for name in ("generation_config", "tokenizer_config", "special_tokens_map")
    ]


def test_what_may_be_missing(sound):
    read = read_folder(sound)
    assert (read.generation, read.tokenizer_config, read.special_tokens) == ({}, {}, {})
    assert (read.chat_template, read.context_length) == (None, None)


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 1}, 1),
        ({"max_position_embeddings": 128, "text_config": {"max_position_embeddings": 64}}, 128),
        ({"max_position_embeddings": 0, "text_config": {"max_position_embeddings": 64}}, 64),
        ({"max_position_embeddings": None}, None),
        ({"text_config": []}, None),
        ({"text_config": {"max_position_embeddings": 0}}, None),
    ],
)
def test_how_long_the_model_was_trained_for(sound, config, length):
    (sound / "config.json").write_text(json.dumps(CONFIG | config))
    assert read_folder(sound).context_length == length


@pytest.mark.parametrize(
    "name",
    ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json",
     "hf_quant_config.json", "chat_template.json", "model.safetensors.index.json"],
)  # fmt: skip
def test_json_that_is_none_is_named_with_what_is_wrong(sound, name):
    file = sound / name
    for content, said in (
        (b'{"a": tru}', "not JSON: Expecting value: line 1 column 7 (char 6)"),
        (b"[" * 100_000, "not JSON: maximum recursion depth exceeded"),
        (b"[1]", "not a JSON object"),
        (b'{"a": "\xff"}', "not UTF-8"),
    ):
        file.write_bytes(content)
        assert refused(sound).startswith(f"{file}: {said}"), content[:10]
    file.write_bytes(b'{"a": ' + b"9" * 5000 + b"}")
    message = refused(sound)
    assert message.startswith(f"{file}: not JSON: Exceeds the limit")
    assert len(message) <= len(f"{file}: not JSON: ") + 200
    file.unlink()
    file.mkdir()
    assert refused(sound).startswith(f"{file}: ")


def test_a_byte_order_mark_is_no_fault(sound):
    (sound / "config.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(CONFIG).encode())
    assert read_folder(sound).config == CONFIG


def test_json_is_read_up_to_a_size(sound, monkeypatch):
    config = json.dumps(CONFIG)
    monkeypatch.setattr(module, "_MOST_JSON", len(config))
    (sound / "config.json").write_text(config)
    assert read_folder(sound).config == CONFIG
    (sound / "config.json").write_text(config + " ")
    assert refused(sound).startswith(f"{sound / 'config.json'}: ")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": None}, "no model_type in it"),
        ({"model_type": 7}, "no model_type in it"),
        ({"model_type": "../evil"}, "unsupported: model_type is '../evil'"),
        ({"model_type": "-a"}, "unsupported: model_type is '-a'"),
        ({"model_type": "x/" * 100}, f"unsupported: model_type is {'x/' * 40!r}"),
        ({"model_file": "run.py"}, "unsupported: model_file asks to run code"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, and there are tensors for 2"),
    ],
)
def test_configurations_that_are_refused(sound, change, says):
    (sound / "config.json").write_text(json.dumps(CONFIG | change))
    assert refused(sound).startswith(f"{sound / 'config.json'}: {says}")


def test_a_file_to_run_that_is_none_is_no_fault(sound):
    (sound / "config.json").write_text(
        json.dumps(CONFIG | {"model_file": None, "model_type": "gemma3-text_2"})
    )
    assert read_folder(sound).architecture == "gemma3-text_2"


def test_what_is_missing_is_named(sound):
    (sound / "tokenizer.json").rename(sound / "t")
    assert refused(sound) == f"{sound / 'tokenizer.json'}: missing; the model needs one: convert it again"
    (sound / "config.json").rename(sound / "c")
    assert refused(sound) == f"{sound / 'config.json'}: missing; not a folder with MLX weights"
    assert refused(sound / "nowhere") == f"{sound / 'nowhere'}: not a folder with MLX weights"
    (sound / "c").rename(sound / "config.json")
    (sound / "model.safetensors").rename(sound / "weights.safetensors")
    assert refused(sound) == f"{sound}: no model*.safetensors in it"
    (sound / "model.safetensors").write_bytes(safetensors())
    assert refused(sound) == f"{sound}: no tensors in its safetensors files"


def test_all_shards_of_an_index_must_be_there(sound):
    index = sound / "model.safetensors.index.json"
    (sound / "model-2.safetensors").write_bytes(safetensors("model.layers.2.w"))
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    (sound / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": 3}))
    assert read_folder(sound).config["num_hidden_layers"] == 3, "the tensors of all files count"
    (sound / "model-2.safetensors").unlink()
    assert (
        refused(sound)
        == f"{sound / 'model-2.safetensors'}: missing, and model.safetensors.index.json names it"
    )
    for wrong in ({}, {"weight_map": []}, {"weight_map": {"a": 1}}):
        index.write_text(json.dumps(wrong))
        assert refused(sound) == f"{index}: no weight_map in it"


# Numbers


@pytest.mark.parametrize(
    ("key", "last", "first"),
    [
        ("num_layers", 512, 513),
        ("num_layers", 1, 0),
        ("hidden_size", (1 << 31) - 1, 1 << 31),
        ("hidden_size", 0, -1),
        ("num_experts", 1024, 1025),
        ("mtp_num_layers", 512, 513),
        ("norm_eps", 0, -1e-9),
        ("norm_eps", 1, 1.01),
        ("rope_theta", 1e-6, 0.9e-6),
        ("rope_theta", 1e30, 1.1e30),
        ("block_ffn_dim_multiplier", 1e6, 1.1e6),
        ("partial_rotary_factor", 1, 1.1),
    ],
)
def test_the_last_number_that_may_be_and_the_first_that_may_not(key, last, first):
    tensors = [f"layers.{number}.w" for number in range(512)]
    for config in ({key: last}, {key: [last, last]}, {"rope_scaling": {key: last}}):
        assert fault(config, tensors) is None
    for config in ({key: first}, {key: [last, first]}, {"text_config": {"rope_parameters": {key: first}}}):
        assert fault(config, tensors) == f"{key} is {str(first)!r}: it must be {RANGES[key]}"


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_layers", "n_layers", "n_layer"])
def test_layers_are_counted_by_the_tensors(key):
    names = ["embed", "h.3.w", "model.layers.11.conv", "layer7.x", "experts.2", "x.1234567890.y"]
    assert fault({key: 12}, names) is None
    assert fault({key: 13}, names) == f"{key} is 13, and there are tensors for 12"
    assert fault({key: 1}, ["embed"]) == f"{key} is 1, and there are tensors for 0"
    assert fault({key: 1}, ["0.w"]) is None
    assert fault({key: 10}, ["a.9"]) is None


def test_quantization_is_judged_at_every_depth():
    def said(**settings):
        return fault({"quantization": settings}, [])

    assert (
        said(group_size=1, bits=32, mode="affine", layer={"bits": 1, "group_size": 1 << 16}, other=False)
        is None
    )
    assert said(group_size=None, bits=None) is None
    assert said(group_size=0) == "quantization: group_size is '0': it must be a whole number from 1 to 65,536"
    assert said(bits=33) == "quantization: bits is '33': it must be a whole number from 1 to 32"
    assert said(a={"b": {"bits": 0}}).startswith("quantization: bits is '0'")
    assert fault({"quantization_config": {"group_size": (1 << 16) + 1}}, []).startswith(
        "quantization_config: group_size"
    )
    assert fault({"text_config": {"quantization": {"bits": 0}}}, []).startswith("quantization: bits")
    assert fault({"quantization": 7, "text_config": 7, "vision_config": {"hidden_size": -1}}, []) is None


def test_a_complaint_is_short():
    assert len(fault({"hidden_size": "x" * 1000}, [])) < 200
    assert len(fault({"quantization": {"bits": "x" * 1000}}, [])) < 200


def test_what_each_number_may_be():
    """As a refusal says it."""
    allowed: dict[str, list[str]] = {}
    for key, each in RANGES.items():
        allowed.setdefault(str(each), []).append(key)
    assert {said: " ".join(sorted(keys)) for said, keys in allowed.items()} == {
        "a whole number from 1 to 512": "n_layer n_layers num_hidden_layers num_layers",
        "a whole number from 0 to 512": "mtp_num_layers num_dense_layers num_nextn_predict_layers",
        "a whole number from 0 to 1,024": (
            "moe_num_experts n_routed_experts n_shared_experts num_experts num_experts_per_tok "
            "num_experts_per_token num_local_experts"
        ),
        "a whole number from 0 to 2,147,483,647": (
            "block_dim block_ff_dim block_multiple_of conv_L_cache head_dim hidden_size intermediate_size "
            "max_position_embeddings moe_intermediate_size num_attention_heads num_key_value_heads vocab_size"
        ),
        "a number from 0 to 1": (
            "layer_norm_eps layer_norm_epsilon layernorm_epsilon norm_eps norm_epsilon partial_rotary_factor "
            "rms_norm_eps"
        ),
        "a number from 1e-06 to 1e+30": "rope_local_base_freq rope_theta",
        "a number from 0 to 1,000,000.0": "block_ffn_dim_multiplier",
    }
