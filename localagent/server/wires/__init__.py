"""The APIs: requests into turns, and the events of turns into answers. Nothing here does any I/O.

Each is one file, or two where answers are long (`responses` and `response_writer`, `messages` and
`message_writer`). `openai`, `choices` and `offer` hold what OpenAI's endpoints share, `ollama_models` what
Ollama says of models. The messages themselves are read by `localagent.wire`.
"""
