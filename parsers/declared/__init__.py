"""The output format that a model declares: Hugging Face's `response_template`, in `tokenizer_config.json`.

The keys and their meaning are those of transformers 5.23 (`utils/chat_parsing` there, and its guide
"Response Parsing"):

- `fields`: name → field. One field may have no `open`: it holds the text outside all others.
- `open`, `close`: a text or a list of texts; `open_pattern`, `close_pattern`: a regular expression, in
  which `.` matches line ends, too, and whose named groups `transform` can use. A field without `close` goes
  on to the end of the output.
- `content`: what reads the text between the two: `text`, `int`, `float`, `bool`, `json`, `xml-inline` or
  `kv-lines`, each with its `content_args`.
- `transform`: the shape of the value. A whole string "{content}", "{content.key}" or "{group}" stands for
  what was read; with `transform_each`, the shape of each item of a list, whose keys are the names then.
- `start_anchor`, `start_anchor_pattern`: where the turn begins in the prompt. One of them must be there.
- `repeats`, `join`, `optional`, `defaults`, `version`: how the message is put together. They change nothing
  here, where parts come one by one; a call that comes again is another call.
- Any other key is an error.

What differs, so that the laws hold: a marker in a string is data, where transformers closes the field at
the first one; what cannot be read is kept as malformed, where transformers raises, and so is what its tags
and lines skip in silence; an argument that the end of the field cuts off makes no call. A declared type of
an argument counts before the type that its text seems to have.

A field must be `content`, `reasoning_content` (`thinking` or `reasoning` in older templates) or
`tool_calls`; a template with others is refused, since there is no place for what they hold. So are
patterns that need the text around a match (`parsers.patterns`), and the older `response_schema`, regular
expressions over the whole output, which transformers ignores.
"""

from .dialect import NAME, declared_dialect

__all__ = ["NAME", "declared_dialect"]
