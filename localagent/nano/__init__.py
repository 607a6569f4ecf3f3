"""lfm2-nano: a language model of one million weights that calls tools, with requests and tasks to try it on.

The weights come in two forms with the same numbers: `GGUF` for llama.cpp, `MLX` for mlx-lm.
"""

from pathlib import Path

_WEIGHTS = Path(__file__).parent / "weights"

GGUF = _WEIGHTS / "lfm2-nano-f16.gguf"
"""The file for llama.cpp."""
MLX = _WEIGHTS / "mlx"
"""The folder for mlx-lm and transformers."""

__all__ = ["GGUF", "MLX"]
