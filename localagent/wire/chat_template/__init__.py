"""Messages in the shape that Hugging Face chat templates read: dicts with `role` and string `content`.

Tool calls go into the content as the model itself writes them, wherever the dialect can: LFM2's own templates
drop `tool_calls` from the history without a word, and others do not escape strings. A turn that still has its
`raw` output goes in with exactly those words, so that its tokens can be used again; any other is written by
`dialect.render`. Only the markers of its calls are meant as control tokens (`Trusted`); what stands in
arguments comes from users and tools as well, and is content, also where it is the text of a marker.

The template is asked what it shows, and given `tool_calls` if it shows them, for a dialect without calls,
where content is framed (`frames_content`), and where it refuses results of calls that it has not seen.

What this shape cannot carry, and what becomes of it:
- several reasoning parts, or reasoning after text: one `reasoning_content` in front;
- calls that stand between no markers: text on the way back;
- call ids, where nothing answers the call; `arguments_text` that is not in json.dumps' notation;
- several text parts next to each other in a system or user message, or a result: joined;
- images, audio and unknown parts: refused by name;
- everything that `request.build_request` leaves out or turns into something else.
"""

from localagent.request import Target
from localagent.wire.chat_template.marking import frames_content
from localagent.wire.chat_template.probing import TemplateSupport, probe
from localagent.wire.chat_template.reading import from_wire
from localagent.wire.chat_template.writing import join_users, to_wire

TARGET = Target("the chat template", system="slot", vision=False, orphan_results=True)

__all__ = ["TARGET", "TemplateSupport", "frames_content", "from_wire", "join_users", "probe", "to_wire"]
