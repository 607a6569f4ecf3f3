"""Compaction: near the limit of the context, the model itself summarises what was said long ago.

    Agent(model, tools, middleware=[Compaction()])      before every turn, if need be
    agent.compact(history)                              now, however long the conversation is

Calls keep their results, the newest turns stay as they were said, and a request that is being answered is
never lost. What goes wrong leaves the history as it was, as long as there is room; then the older turns are
left out without a summary. A session keeps everything in its file.
`boundaries` says where a conversation may be cut, `summarising` asks for the summary.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from localagent.agent.boundaries import begins_turn, choose, is_answered, last_request, places
from localagent.agent.builtin import clip_text
from localagent.agent.events import CompactionEnded, CompactionStarted
from localagent.agent.history import ListHistory
from localagent.agent.summarising import CompactedRun, NoSummary, Outlook, Summariser
from localagent.errors import ContextOverflow, LocalAgentError, UsageError
from localagent.messages import CompactionSummaryMessage, Message, SystemMessage

INSTRUCTIONS = (
    "Summarise the conversation so far. Your summary will take the place of everything above, so keep what "
    "is needed to go on: what the user wants, names, numbers, facts, decisions, what tools returned that "
    "still matters, and what is left to do. What an earlier summary says belongs in it. Do not answer, do "
    "not call tools: write only the summary, in at most {words} words."
)
REQUEST = "\n\nThe request that is being answered, word for word:\n"
"""In a summary, before the words of a request that is still being answered."""
LEFT_OUT = "Earlier turns were left out here, since they could not be summarised."
"""In place of a summary, where there is none."""
FULL = 0.9
"""The share of the context above which turns are left out rather than the next answer cut off."""
MOST_TOKENS = 2048
"""Tokens of a summary by default, and at most an eighth of the context."""
LEAST_TOKENS = 16
"""Tokens of a summary. Where that is more than half of what it would replace, there is nothing to gain."""
MOST_WAITING = 64
"""Conversations that are remembered because compacting them did not help."""

CompactionEvent = CompactionStarted | CompactionEnded


class Compaction:
    """Middleware that summarises older turns when a request comes near the limit of the context.

    Each summary costs a turn of the model. One object may serve several agents and conversations.
    """

    def __init__(
        self,
        share: float = 0.8,
        keep: float = 0.3,
        instructions: str = INSTRUCTIONS,
        max_tokens: int | None = None,
    ) -> None:
        """`share` of the context may be filled; less where the agent's `max_tokens` needs more for answers.

        The newest messages are kept, as many as fit `keep` of the context; at least the user's last request
        and what came of it, if there is room. `instructions` tell the model what a summary is; "{words}" in
        them stands for its length. `max_tokens`: of a summary; by default an eighth of the context, at most
        2,048. Raises UsageError.
        """
        if not (_is_number(share) and _is_number(keep) and 0 <= keep < share <= 1):
            raise UsageError(
                f"keep is {keep!r:.40} and share is {share!r:.40}: both are shares of the context, "
                "from 0 to 1, and keep must be the smaller one"
            )
        if not isinstance(instructions, str) or not instructions.strip():
            raise UsageError("instructions is empty: say what a summary should hold")
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < LEAST_TOKENS):
            raise UsageError(f"max_tokens is {max_tokens!r:.40}: it must be {LEAST_TOKENS} or more")
        self.share = share
        self.keep = keep
        self.instructions = instructions
        self.max_tokens = max_tokens
        # By conversation, the tokens at which to try again where compacting did not help.
        self._waiting: dict[int, int] = {}
        self._lock = threading.Lock()

    def before_turn(self, run: CompactedRun) -> Iterator[CompactionEvent]:
        """Compact the history of the run if its next request is too long."""
        outlook, messages = Outlook(run), run.history.messages()
        if not places(messages):
            return
        try:
            tokens = outlook.count(messages)
        except LocalAgentError:
            return  # the turn meets the same error, and the run fails with it
        if tokens <= self._limit(outlook):
            return
        waits = tokens < self._waiting.get(_identity(messages), 0) and tokens <= FULL * outlook.context
        if not waits:
            yield CompactionStarted(tokens, outlook.context)
            ended = self._compact(outlook, messages, tokens, outlook.context)
            if not run.cancel.is_set():
                self._wait(outlook, ended)
            yield ended

    def compact(self, run: CompactedRun) -> Iterator[CompactionEvent]:
        """Compact the history now. `keep` is a share of the conversation, if it is shorter than the context.

        Raises what counting tokens raises, and SaveFailed.
        """
        outlook, messages = Outlook(run), run.history.messages()
        tokens = outlook.count(messages) if places(messages) else 0
        yield CompactionStarted(tokens, outlook.context)
        empty = outlook.count(_compacted(messages, len(messages), ""))
        yield self._compact(outlook, messages, tokens, min(max(0, tokens - empty), outlook.context))

    def _limit(self, outlook: Outlook) -> int:
        """The most tokens that a request may have."""
        run = outlook.run
        answer = run.options.get("max_tokens") or run.model.sampling.max_tokens or 0
        most = int(self.share * outlook.context)
        # A generous max_tokens is no wish to have half of the context forgotten.
        return max(min(most, outlook.context - answer), most // 2)

    def _wait(self, outlook: Outlook, ended: CompactionEnded) -> None:
        """Where it did not help, wait until the conversation has grown by a tenth of the context."""
        until = ended.tokens_after + outlook.context // 10
        if until > self._limit(outlook):
            with self._lock:
                self._waiting[_identity(outlook.run.history.messages())] = until
                while len(self._waiting) > MOST_WAITING:
                    del self._waiting[next(iter(self._waiting))]

    def _compact(self, outlook: Outlook, messages: list[Message], tokens: int, whole: int) -> CompactionEnded:
        """Choose, summarise, replace, and say what came of it. `keep` is a share of `whole` tokens."""
        summariser = Summariser(outlook, self.instructions)
        cut: _Cut | None = None
        problem: str | None = None
        try:
            cut = self._summarised(outlook, messages, tokens, int(self.keep * whole), summariser)
        except (NoSummary, LocalAgentError) as error:
            problem = str(error)
            unable = isinstance(error, NoSummary | ContextOverflow) and not outlook.run.cancel.is_set()
            if unable and tokens > FULL * outlook.context:
                with suppress(NoSummary, LocalAgentError):
                    cut = self._window(outlook, messages, tokens)
                    problem += "; older turns were left out"
        if cut is None:
            return CompactionEnded(None, tokens, tokens, problem, summariser.usage)
        outlook.run.keep_summary(cut.summary, len(messages) - cut.place, tokens)
        return CompactionEnded(cut.summary, tokens, cut.tokens, problem, summariser.usage)

    def _summarised(
        self, outlook: Outlook, messages: list[Message], tokens: int, budget: int, summariser: Summariser
    ) -> _Cut:
        """The older turns in a summary. Raises NoSummary, and what a turn raises."""
        most = min(self.max_tokens or MOST_TOKENS, outlook.context // (4 if self.max_tokens else 8))
        place, size = self._choose(outlook, messages, budget, room=most)
        if (most := min(most, (tokens - size) // 2)) < LEAST_TOKENS:
            raise NoSummary("there is too little to summarise: nothing would be gained")
        return _cut(outlook, messages, place, summariser.summarise(messages[:place], most), tokens)

    def _window(self, outlook: Outlook, messages: list[Message], tokens: int) -> _Cut:
        """The newest turns alone, as many as leave room to go on, and what an earlier summary says.

        Raises NoSummary.
        """
        summaries = [message.text for message in messages if isinstance(message, CompactionSummaryMessage)]
        earlier = summaries[-1].partition(REQUEST)[0] if summaries else ""
        text = earlier if LEFT_OUT in earlier else f"{earlier}\n\n{LEFT_OUT}".strip()
        place, _ = self._choose(outlook, messages, outlook.context, text=text)
        return _cut(outlook, messages, place, text, tokens)

    def _choose(
        self, outlook: Outlook, messages: list[Message], budget: int, room: int = 0, text: str = ""
    ) -> tuple[int, int]:
        """Where to cut, and the tokens of the next request with `text` for a summary. Raises NoSummary.

        `room`: tokens that are still to be added to it.
        """

        def size(place: int) -> int:
            request = _request_before(messages, place, outlook.context)
            return outlook.count(_compacted(messages, place, text + request))

        if not (found := places(messages)):
            raise NoSummary("there is nothing before the last request that could be summarised")
        if text:  # where nothing tells what came before, an answer without its question helps nobody
            found = [place for place in found if begins_turn(messages, place)] or found
        spare = outlook.context // 10  # so that the very next turn need not compact again
        comfortable = self._limit(outlook) - room - spare
        wanted = min(budget + outlook.count(_compacted(messages, len(messages), "")), comfortable)
        place = choose(found, messages, size, wanted, comfortable)
        if place < len(messages) and size(place) + room > outlook.context:
            raise NoSummary(
                "the last request does not fit into the context, whatever is summarised before it"
            )
        return place, size(place)


class _Cut(NamedTuple):
    """What becomes of a conversation: from which place on it stays, and the tokens of the next request."""

    place: int
    summary: str
    tokens: int


def _cut(outlook: Outlook, messages: list[Message], place: int, text: str, tokens: int) -> _Cut:
    """The cut at a place, with this summary. Raises NoSummary where nothing is gained of `tokens`."""
    summary = text + _request_before(messages, place, outlook.context)
    after = outlook.count(_compacted(messages, place, summary))
    if after >= tokens:
        raise NoSummary("the summary is longer than what it would replace")
    return _Cut(place, summary, after)


def _compacted(messages: list[Message], place: int, summary: str) -> list[Message]:
    """The conversation as it would be."""
    copy = list(messages)
    ListHistory(copy).compact(summary, len(messages) - place)
    return copy


def _request_before(messages: Sequence[Message], place: int, context: int) -> str:
    """What a summary says word for word: the request that is being answered, if the cut lies after it.

    It is clipped to a quarter of a character for each token of the context, so that it never fills much of
    it.
    """
    if is_answered(messages):
        return ""
    if (asked := last_request(messages)) is None:
        earlier = next((m.text for m in reversed(messages) if isinstance(m, CompactionSummaryMessage)), "")
        request = earlier.rpartition(REQUEST)[2] if REQUEST in earlier else ""
    else:
        request = messages[asked].text if asked < place else ""
    return REQUEST + clip_text(request.strip(), context // 4) if request.strip() else ""


def _identity(messages: Sequence[Message]) -> int:
    """What tells a conversation from others: its first message other than instructions."""
    first = next((m for m in messages if not isinstance(m, SystemMessage)), None)
    return hash(first.model_dump_json()) if first else 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
