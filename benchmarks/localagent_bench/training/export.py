"""Writes lfm2-nano in both forms, from the same numbers: an MLX folder and a GGUF file.

`python -m localagent_bench.training.export FROM TO` makes them from a training checkpoint. Matrices are
rounded to f16 once; where GGUF asks for f32 (norms, convolution kernels), it gets the rounded ones, so that
both forms hold the same numbers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localagent_bench.training import tokenizer
from localagent_bench.training.corpus import TEMPLATE
from localagent_bench.training.shape import NAME, Shape, config, gguf_name

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray[Any, np.dtype[np.float16]]]

GGUF_FILE = f"{NAME}-f16.gguf"
MLX_FOLDER = "mlx"
_CONTROL, _NORMAL = 3, 1  # token types of GGUF
_MOSTLY_F16 = 1


def write(weights: dict[str, Any], shape: Shape, tokens: dict[str, Any], out: Path) -> None:
    """Write `mlx/` and the GGUF file into `out`. `weights`: torch tensors; `tokens`: the tokenizer.json."""
    arrays: Arrays = {name: weight.detach().half().numpy() for name, weight in weights.items()}
    out.mkdir(parents=True, exist_ok=True)
    write_mlx(arrays, shape, tokens, out / MLX_FOLDER)
    write_gguf(arrays, shape, tokens, out / GGUF_FILE)


def write_mlx(arrays: Arrays, shape: Shape, tokens: dict[str, Any], folder: Path) -> None:
    """The folder that `mlx_lm.load` and transformers read."""
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    ids = tokens["model"]["vocab"]
    special = {"bos": ids[tokenizer.BOS], "eos": ids[tokenizer.EOS], "pad": ids[tokenizer.PAD]}
    files = {"config.json": config(shape, special), "tokenizer_config.json": tokenizer.config()}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    (folder / "tokenizer.json").write_text(json.dumps(tokens, ensure_ascii=False))
    (folder / "chat_template.jinja").write_text(TEMPLATE.read_text())
    (folder / "model.safetensors").chmod(0o644)  # it is written for its owner alone


def write_gguf(arrays: Arrays, shape: Shape, tokens: dict[str, Any], path: Path) -> None:
    """The file that llama.cpp reads."""
    import gguf

    writer = gguf.GGUFWriter(path, "lfm2")
    _describe(writer, shape)
    _add_tokenizer(writer, tokens)
    for name, array in arrays.items():
        kept = array.squeeze(1) if array.ndim == 3 else array
        exact = array.ndim != 2  # llama.cpp multiplies by norms and kernels in f32
        writer.add_tensor(gguf_name(name), kept.astype("float32") if exact else kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, shape: Shape) -> None:
    writer.add_name(NAME)
    writer.add_license("apache-2.0")
    writer.add_description(
        "A very small model for tests and demonstrations, trained on generated conversations."
    )
    writer.add_file_type(_MOSTLY_F16)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(len(shape.layers))
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv([0 if kind == "conv" else shape.kv_heads for kind in shape.layers])
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_shortconv_l_cache(shape.conv_taps)


def _add_tokenizer(writer: Any, tokens: dict[str, Any]) -> None:
    ids: dict[str, int] = tokens["model"]["vocab"]
    vocabulary = sorted(ids, key=ids.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("lfm2")
    writer.add_token_list(vocabulary)
    writer.add_token_types([_CONTROL if token in tokenizer.SPECIAL else _NORMAL for token in vocabulary])
    writer.add_token_merges([" ".join(pair) for pair in tokens["model"]["merges"]])
    writer.add_bos_token_id(ids[tokenizer.BOS])
    writer.add_eos_token_id(ids[tokenizer.EOS])
    writer.add_pad_token_id(ids[tokenizer.PAD])
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE.read_text())


def main() -> None:
    """Export the checkpoint in the first folder to the second."""
    import torch

    source, out = map(Path, sys.argv[1:3])
    state = torch.load(source / "checkpoint.pt", weights_only=True)
    write(state["weights"], Shape(), json.loads((source / "tokenizer.json").read_text()), out)


if __name__ == "__main__":
    main()
