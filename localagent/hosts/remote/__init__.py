"""Models whose tokens somebody else's server draws: ids go out, ids come back, and all else is done here.

http        the connection: one for each request, closed where a turn is cancelled
address     what `load` takes: vllm://host:8000/model, sglang://, llama-server://
apis        what each server is asked, and what its events mean; no input or output
vocabulary  the tokenizer: from files, from a GGUF, from Hugging Face; checked against the server
host        the `protocol.Host`
"""
