"""The HTTP server that speaks the APIs of OpenAI, Anthropic and Ollama.

`exchange` has the words in which wires and the HTTP layer speak to each other, `wires` the APIs themselves,
without a socket or a web framework.
"""
