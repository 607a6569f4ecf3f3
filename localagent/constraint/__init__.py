"""Grammars from dialects and schemas, and the matchers that bound what a model writes."""
