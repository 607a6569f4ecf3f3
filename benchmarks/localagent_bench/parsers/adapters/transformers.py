"""transformers: `parse_response` and the parser for streams, 5.13 and later.

    pip install "transformers>=5.13"        # no torch is needed

transformers reads an output by the `response_template` that the model's tokenizer declares. The templates
here are those that `transformers serve` falls back to for models that declare none. No tokenizer is loaded.
"""

import ast
import pathlib

NAME = "transformers"
MODELS = {"hermes": "qwen3", "qwen3-coder": "qwen3_5", "gemma4": "gemma4"}
DIALECTS = {}
_TEMPLATES = {}


def load():
    """The templates are taken from the source, since the module that has them needs torch."""
    import transformers
    from transformers.utils import chat_parsing  # noqa: F401  # from 5.13 on

    source = pathlib.Path(transformers.__file__).parent / "cli" / "serving" / "utils.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == "_RESPONSE_TEMPLATE_FALLBACKS":
            known = ast.literal_eval(node.value)
            _TEMPLATES.update({model: template for models, template in known.items() for model in models})
    for dialect, model in MODELS.items():
        if model in _TEMPLATES:
            DIALECTS[dialect] = f"response template of {model}"
    if not DIALECTS:
        raise ImportError("this version of transformers has no response templates")
    return transformers.__version__


def read(dialect, pieces, streamed, request):
    """The prompt matters: by its end the parser sees whether the output begins in reasoning."""
    from transformers.utils.chat_parsing import ResponseParser, parse_response

    template, tools = _TEMPLATES[MODELS[dialect]], request.get("tools")
    opened = {"gemma4": "<|channel>thought\n"}.get(dialect, "<think>\n")
    anchor = template["start_anchor"]
    prefix = (anchor if isinstance(anchor, str) else anchor[0]) + (opened if request.get("inside") else "")
    if not streamed:
        message = parse_response(pieces[0], template, prefix=prefix, tools=tools)
        content, reasoning = message.get("content") or "", message.get("reasoning_content") or ""
        calls = message.get("tool_calls") or []
    else:
        parser = ResponseParser(template, prefix=prefix, tools=tools)
        events = [event for piece in pieces for event in parser.feed(piece)]
        events += parser.finalize()[1]
        # As `response_events_to_chunks` sends them to a client
        told = {"content": "", "reasoning_content": "", "thinking": ""}
        calls = []
        for event in events:
            field = event.get("field")
            if event["type"] == "region_chunk" and not event.get("dirty") and field in told:
                told[field] += event["text"]
            elif event["type"] == "region_close" and field == "tool_calls":
                value = event["value"]
                calls += value if isinstance(value, list) else [value]
        content, reasoning = told["content"], told["reasoning_content"] + told["thinking"]
    return {
        "content": content,
        "reasoning": reasoning,
        "tool_calls": [
            {"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in calls
        ],
    }
