"""One rule: which calls it is about.

Knows tools and calls, and how arguments are spelled. Does not know who is asked. Contract: a rule looks at
what runs. The tool's normal form of the arguments counts beside what the model wrote; where the two differ, a
rule that denies or asks fits if either does, and a rule that allows only if both do.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from localagent.errors import UsageError
from localagent.messages import ToolCallPart
from localagent.tools import Tool, ToolSet
from localagent.tools.names import matched, normal_name

Action = Literal["allow", "deny", "ask"]

_WILD = re.compile(r"[*?\[]")
_SEPARATORS = re.compile(r"[/\\]+")


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do about calls of the tools that `tool` names, where the arguments look like `arguments`.

    All are patterns of the shell: `*`, `?` and `[...]`, of which `*` fits slashes, too. A name without them
    may differ in letter case and punctuation, as models write names. An argument that is no text is compared
    as JSON; one that the call does not have, and that has no default, fits no pattern.

    Paths: a rule that denies or asks also fits if the path does once `.` and `..` are resolved. A rule that
    allows does not fit a path with `..` in it, unless its pattern is that path, or `*`.
    """

    action: Action
    tool: str = "*"
    arguments: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    """Of a "deny", for the model."""

    def __post_init__(self) -> None:
        """Raise UsageError for a rule that could never mean what was meant."""
        if self.action not in ("allow", "deny", "ask"):
            raise UsageError(f"a rule's action is {self.action!r:.40}: it must be allow, deny or ask")
        if not isinstance(self.tool, str) or not self.tool:
            raise UsageError(f"a rule's tool is {self.tool!r:.40}: it must be a name, or * for all")
        if not isinstance(self.arguments, Mapping):
            raise UsageError(f"a rule's arguments are {self.arguments!r:.60}: they must be patterns by name")
        for name, pattern in self.arguments.items():
            if not isinstance(name, str) or not isinstance(pattern, str):
                raise UsageError(f"a rule's pattern for {name!r:.40} is {pattern!r:.40}: it must be text")

    def names(self, tool: str) -> bool:
        """Whether the rule is about the tool of this name."""
        alike = not _WILD.search(self.tool) and normal_name(self.tool) == normal_name(tool)
        return alike or fnmatchcase(tool, self.tool)

    def fits(self, tool: Tool, call: ToolCallPart) -> bool:
        """Whether the rule is about this call."""
        if not self.names(tool.name):
            return False
        allows = self.action == "allow"
        compare = _lies_in if allows else _leads_to
        written = self._fits(call.arguments, compare)
        if not self.arguments or written is not allows:
            return written  # what the tool would make of the arguments is not worth the work
        try:
            return self._fits(tool.normal(call.arguments), compare)
        except Exception:  # then it does not run anyway, or nobody knows what would
            return False

    def _fits(self, given: Mapping[str, Any], compare: Callable[[Any, str], bool]) -> bool:
        patterns = matched(self.arguments, given)
        return all(name in given and compare(given[name], pattern) for name, pattern in patterns.items())

    def may_fit(self, tools: ToolSet) -> bool:
        """Whether there can be a call of these tools, or of tools that come later, that the rule is about."""
        named = [tool for tool in tools if self.names(tool.name)]
        if not named:
            return _WILD.search(self.tool) is not None
        return any(self._has_arguments(tool) for tool in named)

    def _has_arguments(self, tool: Tool) -> bool:
        if tool.normalise is None or tool.parameters.get("additionalProperties"):
            return True  # it takes what it is given
        known = tool.parameters.get("properties", {})
        return all(name in known for name in matched(self.arguments, known))


def _lies_in(value: Any, pattern: str) -> bool:
    """Whether a value is surely one that the pattern means: `notes/../x` is none of `notes/*`."""
    fits = any(fnmatchcase(text, pattern) for text in _spellings(value))
    if fits and any(".." in _SEPARATORS.split(text) for text in _strings(value)):
        return pattern in ("*", value)
    return fits


def _leads_to(value: Any, pattern: str) -> bool:
    """Whether a value may be one that the pattern means, as it stands or as a path."""
    resolved = _resolved(value)
    texts = [*_spellings(value), *_spellings(resolved)]
    return any(fnmatchcase(text, each) for text in texts for each in (pattern, _resolved(pattern)))


def _spellings(value: Any) -> Iterator[str]:
    """A value as the text that a pattern is compared with; 1 and 1.0 are the same number."""
    yield value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and value.is_integer():
        yield str(int(value))


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _strings(item)
        case Mapping():
            for item in value.values():
                yield from _strings(item)


def _resolved(value: Any) -> Any:
    """A value with its texts as the shortest paths to the same place: `/tmp/../etc//x` is `/etc/x`."""
    match value:
        case str():
            return posixpath.normpath(_SEPARATORS.sub("/", value)) if value else value
        case list():
            return [_resolved(item) for item in value]
        case Mapping():
            return {key: _resolved(item) for key, item in value.items()}
    return value
