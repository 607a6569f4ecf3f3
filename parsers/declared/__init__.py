"""The output format that a model declares: Hugging Face's `response_template`, in `tokenizer_config.json`.

The keys and their meaning are those of transformers 5.23 (`utils/chat_parsing` there, and its guide
"Response Parsing"):

- `fields`: name → field. `content` may have no `open`: it holds the text outside all others then.
- `open`, `close`: a text or a list of texts; `open_pattern`, `close_pattern`: a regular expression, in
  which `.` matches line ends, too, and whose named groups `transform` can use. A field without `close` goes
  on to the end of the output; one of calls must have it.
- `content`: what reads the text between the two: `text`, `json` or `xml-inline`, each with its
  `content_args`.
- `transform`: where a call has its name and its arguments. A whole string "{content}", "{content.key}" or
  "{group}" stands for what was read; with `transform_each`, "{key}" for a key of each item of a list.
- `start_anchor`, `start_anchor_pattern`: where the turn begins in the prompt. One of them must be there.
- `repeats`, `join`, `optional`, `defaults`, `version`: how the message is put together. They change nothing
  here, where parts come one by one; a call that comes again is another call.
- Any other key is an error.

What differs, so that the laws hold: a marker in a string is data, where transformers closes the field at
the first one; what cannot be read is kept as malformed, where transformers raises, and so is what its tags
and lines skip in silence; an argument that the end of the field cuts off makes no call. A declared type of
an argument counts before the type that its text seems to have.

What no checkpoint is known to declare is refused, never guessed at: other fields than `content`,
`reasoning_content` (`thinking` or `reasoning` in older templates) and `tool_calls`; the parsers `int`,
`float`, `bool` and `kv-lines`; names and arguments that the template itself has; patterns that need the text
around a match (`parsers.patterns`); and the older `response_schema`, regular expressions over the whole
output, which transformers ignores. Known are the template in Gemma 4's own files, those of
`transformers serve` and of the tests of transformers (Qwen, SmolLM3, Cohere, ERNIE, gpt-oss), and those that
TRL saves with what it trains. Two of TRL's are refused, whose formats are dialects here: Nemotron 3's has a
lookahead, LFM2.5's an expression for values. Its one for Llama 3 takes the last brace of a call for part of
what closes the field: that brace is kept as malformed, beside the call.
"""

from .dialect import NAME, declared_dialect

__all__ = ["NAME", "declared_dialect"]
