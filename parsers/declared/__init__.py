"""The output format that a model declares: Hugging Face's `response_template`, in a tokenizer's configuration."""

from parsers.declared.dialect import NAME, declared_dialect

__all__ = ["NAME", "declared_dialect"]
