"""The model that answers in a chat, with its tools and the options of its turns; all may change meanwhile."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Self, cast

from localagent.agent import Agent, Approvals, Approver, Compaction
from localagent.chat_model import UNKNOWN_CONTEXT, ChatModel
from localagent.cli.loading import open_model
from localagent.cli.options import ModelOptions, ToolOptions
from localagent.cli.talk.settings import loadable, record, restore
from localagent.cli.terminal import flat
from localagent.cli.tools import open_tools, rules
from localagent.cli.tools import permissions as permissions_of
from localagent.control import TurnOptions
from localagent.errors import LocalAgentError, UsageError
from localagent.wording import quoted


class Speaker:
    """Whoever answers. Makes agents: cheap ones, a new one after each change."""

    def __init__(
        self,
        model: ChatModel,
        offered: list[Any],
        options: ModelOptions,
        tools: ToolOptions,
        turn: TurnOptions,
        load: Callable[[ModelOptions], ChatModel],
    ) -> None:
        """`offered`: the tools, as agents take them. `turn`: the options of its turns.

        `load` opens a model.
        """
        self.model = model
        self.options = options
        self.turn = turn
        self._tools = tools
        self._offered = offered
        self._load = load
        self.permissions = permissions_of(tools)
        """Where "always" is kept for later chats, if anywhere."""
        self._approvals: Approvals | None = None

    @classmethod
    def open(
        cls,
        options: ModelOptions,
        tools: ToolOptions,
        kept: Mapping[str, Any] | None,
        stack: ExitStack,
        say: Callable[[str], None],
        *,
        save: bool,
    ) -> Self:
        """Open the tools, then load the model; `stack` closes both. `kept`: what a session recorded.

        Raises LocalAgentError.
        """
        options, tools, turn = restore(kept, options, tools)
        offered = open_tools(tools, stack, say)

        def load(wanted: ModelOptions) -> ChatModel:
            return open_model(wanted, snapshots=save)

        speaker = cls(load(options), offered, options, tools, turn, load)
        stack.callback(speaker.close)
        return speaker

    def close(self) -> None:
        """Free the weights."""
        self.model.close()

    def agent(self, approver: Approver) -> Agent:
        """An agent as things stand. What was answered with "always" still counts. Raises UsageError."""
        if self._approvals is None:
            self._approvals = Approvals(rules(self._tools), approver)
        middleware = [Compaction()]
        return Agent(self.model, self._offered, approvals=self._approvals, middleware=middleware, **self.turn)

    @property
    def described(self) -> str:
        """The model, and how much it can be told, if that is known."""
        name, context = flat(self.model.name), self.model.host.context
        return name if context >= UNKNOWN_CONTEXT else f"{name}, {context:,} tokens of context"

    @property
    def settings(self) -> dict[str, Any]:
        """What a session records."""
        return record(self._loadable(), self.options, self._tools, self.turn)

    def use(self, name: str) -> None:
        """Let another model answer. If it cannot be loaded, the earlier one is loaded again.

        Raises LocalAgentError. If the earlier one cannot be loaded any more either, there is none until
        another is chosen.
        """
        from localagent.cli.naming import resolve

        # A server has names of its own.
        named = name if self.options.server else resolve(name)
        wanted = dataclasses.replace(
            self.options, model=named, dialect=None, tokenizer=None
        )  # of the earlier
        self.model.close()  # first: two models may not fit
        try:
            self.model = self._load(wanted)
        except BaseException as error:
            try:
                self.model = self._load(dataclasses.replace(self.options, model=self._loadable()))
            except LocalAgentError as second:
                raise UsageError(
                    f"{error}; and {quoted(self.model.name)} cannot be loaded again ({second}): no model is "
                    "loaded, choose one with /model"
                ) from error
            raise
        self.options = wanted

    def set(self, name: str, value: Any) -> None:
        """Change an option of the turns; None leaves it to the model. Raises UsageError."""
        turn = cast(TurnOptions, {key: kept for key, kept in self.turn.items() if key != name})
        if value is not None:
            turn = cast(TurnOptions, {**turn, name: value})
        self.model.turn_options(turn)
        self.turn = turn

    def _loadable(self) -> str:
        return loadable(self.options, self.model.name)
