"""Models whose tokens somebody else's server draws: ids go out, ids come back, and all else is done here.

http        the connection: one for each request, closed where a turn is cancelled
refusals    what a server says when it does not answer, as typed errors
following   an answer that a thread reads, on an event loop
address     what `load` takes: vllm://host:8000/model, sglang://, llama-server://, openai://
apis        what each server is asked, and what its events mean; no input or output
vocabulary  the tokenizer: from files, from a GGUF, from Hugging Face; checked against the server
generation  one answer: its request, its tokens, how it is given up
host        the `protocol.Host`
opening     makes it, after a look at the server
"""
