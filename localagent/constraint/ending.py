"""How reasoning is ended: after a number of tokens, or on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localagent.hosts.engine import Vocabulary
from localagent.hosts.protocol import CancelFlag, Host
from localagent.prompt.segments import Prompt, Segment
from localagent.prompt.thinking import ThinkingPlan


class Ending:
    """The end of the reasoning in one generation: says when its closing marker is forced, and by what tokens.

    `accept` has to see every token. Its caller, who reads the output, says which of them are reasoning.
    """

    def __init__(
        self,
        closing: str,
        tokenize: Callable[[str], Sequence[int]],
        *,
        budget: int | None,
        flag: CancelFlag | None,
        inside: bool,
        token: bool,
    ) -> None:
        """`closing`: the marker, with the white space around it. `tokenize` recognises special tokens.

        `budget`: tokens. `flag`: ends it when set. `inside`: the prompt has opened the reasoning. `token`:
        the marker is a special token, of which the model cannot have written a part.
        """
        self._closing = closing
        self._tokenize = tokenize
        self._budget = budget
        self._flag = flag
        self._inside = inside
        blank = len(closing) - len(closing.lstrip())
        self._most = blank if token else len(closing) - 1
        self._tail = ""
        """The end of the output so far, as far as it may begin the closing."""
        self._spent = 0
        self._pieces = 0
        """Tokens at the end that complete no text: they may be a part of a character."""
        self._due: tuple[int, ...] = ()

    def forced(self) -> Sequence[int]:
        """The tokens that are due; none while the reasoning may go on, or outside of it."""
        if self._due or not self._inside or self._pieces:
            return self._due
        spent = self._budget is not None and self._spent >= self._budget
        if spent or (self._flag is not None and self._flag.is_set()):
            # The model may have begun to write the closing marker itself.
            begun = next(n for n in range(self._most, -1, -1) if self._tail.endswith(self._closing[:n]))
            self._due = tuple(self._tokenize(self._closing[begun:]))
        return self._due

    def accept(self, token: int, text: str, inside: bool) -> None:
        """A token came and completed `text`; after it, the output is `inside` the reasoning or not."""
        if self._due:
            self._due = self._due[1:] if token == self._due[0] else ()
        elif self._inside and inside:
            self._spent += 1
        self._tail = (self._tail + text)[-self._most :] if self._most else ""
        # No character has more than four bytes: what completes no text after that never will.
        self._pieces = 0 if text or self._pieces == 3 else self._pieces + 1
        self._inside = inside


def ending_for(host: Host, plan: ThinkingPlan, flag: CancelFlag | None, prompt: Prompt) -> Ending | None:
    """What ends the reasoning of a turn, if anything is to."""
    vocabulary: Vocabulary | None = host.vocabulary
    if not plan.closing or vocabulary is None or (plan.budget is None and flag is None):
        return None

    def tokenize(text: str) -> Sequence[int]:
        return vocabulary.tokenize_segments([Segment(text, special=True)], continued=True)

    return Ending(
        plan.closing,
        tokenize,
        budget=plan.budget,
        flag=flag,
        inside=prompt.inside == "reasoning",
        token=plan.closing.strip() in host.special_tokens,
    )
