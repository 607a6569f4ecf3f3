"""Lists of calls in Python: LFM2, Llama's pythonic notation, OLMo 3."""
