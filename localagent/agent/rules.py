"""What can be decided about a call, and rules that decide it without asking.

A rule looks at what runs, and not only at what the model wrote: a tool may read the same arguments in another
way, and then a rule that goes by the words could be got round. So the arguments count both as they were
written and in the tool's normal form. Where the two differ, a rule that denies or asks fits if either does,
and a rule that allows only if both do.
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
class Allow:
    """The call runs as the model wrote it. `always`: so do later calls of this tool; see `Approvals`."""

    always: bool = False


@dataclass(frozen=True, slots=True)
class Deny:
    """The call does not run, and the model reads why. `always`: nor do later calls of this tool."""

    reason: str = ""
    always: bool = False


@dataclass(frozen=True, slots=True)
class Edit:
    """The call runs with these arguments instead, unless a rule denies them; the model is told."""

    arguments: Mapping[str, Any]


Decision = Allow | Deny | Edit


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call for the approver to decide about. `call.described_arguments` has its arguments on one line."""

    call: ToolCallPart
    tool: Tool
    changed: bool = False
    """Another tool of this name was always allowed, and this one is not the same; see `Tool.identity`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What to do about calls of the tools that `tool` names, where the arguments look like `arguments`.

    Names and arguments are shell patterns with `*`, `?` and `[...]`; `*` also matches slashes. A name without
    these may differ in letter case and punctuation, since models write names in their own way. An argument
    that is not text is compared as JSON. One that the call lacks, and that has no default, fits no pattern.

    Paths: a rule that denies or asks also fits if the path does once `.` and `..` are resolved. A rule that
    allows does not fit a path with `..` in it, unless its pattern is that path, or `*`.
    """

    action: Action
    tool: str = "*"
    arguments: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    """Why a "deny" denies, for the model to read."""

    def __post_init__(self) -> None:
        """Refuse what cannot be a rule. Raises UsageError."""
        if self.action not in ("allow", "deny", "ask"):
            raise UsageError(f"a rule's action is {self.action!r:.40}: it must be allow, deny or ask")
        if not isinstance(self.tool, str) or not self.tool:
            raise UsageError(f"a rule's tool is {self.tool!r:.40}: it must be a name, or * for all")
        if not isinstance(self.arguments, Mapping):
            raise UsageError(f"a rule's arguments are {self.arguments!r:.60}: they must be patterns by name")
        for name, pattern in self.arguments.items():
            if not isinstance(name, str) or not isinstance(pattern, str):
                raise UsageError(f"a rule's pattern for {name!r:.40} is {pattern!r:.40}: it must be text")

    @property
    def denial(self) -> Deny:
        """The decision of a rule that denies."""
        return Deny(self.reason or "a rule forbids this call")

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
            return written  # the normal form cannot change the answer any more
        try:
            return self._fits(tool.normal(call.arguments), compare)
        except Exception:  # the arguments do not fit the tool, so the call does not run either
            return False

    def _fits(self, given: Mapping[str, Any], compare: Callable[[Any, str], bool]) -> bool:
        patterns = matched(self.arguments, given)
        return all(name in given and compare(given[name], pattern) for name, pattern in patterns.items())

    def may_fit(self, tools: ToolSet) -> bool:
        """Whether some call of these tools, or of tools that come later, may fit."""
        named = [tool for tool in tools if self.names(tool.name)]
        if not named:
            return _WILD.search(self.tool) is not None
        return any(self._has_arguments(tool) for tool in named)

    def _has_arguments(self, tool: Tool) -> bool:
        if tool.normalise is None or tool.parameters.get("additionalProperties"):
            return True  # it takes arguments of any name
        known = tool.parameters.get("properties", {})
        return all(name in known for name in matched(self.arguments, known))


def _lies_in(value: Any, pattern: str) -> bool:
    """Whether a value is certainly one that the pattern means: `notes/../x` is not in `notes/*`."""
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
    """A value as the texts that a pattern is compared with; 1 and 1.0 are the same number."""
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
    """A value with its texts read as paths and resolved: `/tmp/../etc//x` is `/etc/x`."""
    match value:
        case str():
            return posixpath.normpath(_SEPARATORS.sub("/", value)) if value else value
        case list():
            return [_resolved(item) for item in value]
        case Mapping():
            return {key: _resolved(item) for key, item in value.items()}
    return value
