"""The training corpus: an endless, repeatable stream of conversations as token ids.

Conversation number n of a seed is always the same, so a run can go on where it stopped. Only the tokens that
the model is to write carry loss: the assistant's turns with their end tokens, and where thoughts are asked
for only the last one, because templates do not show the past's.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from localagent.nano import MLX
from localagent.nano.conversations import PLANS, Author, Conversation, common_words
from localagent.nano.requests import messages, written_by
from localagent.nano.skills import Form
from localagent.nano.words import Lexicon
from localagent_bench.training.tokenizer import BOS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TEMPLATE = MLX / "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of training. `weights`: how often each kind is drawn.

    `choices` is the share of conversations that are short and only about whether a tool is offered. With
    `copying` all are short, and many only ask to repeat a text.
    """

    weights: dict[str, float]
    choices: float = 0.0
    copying: bool = False


COPYING = Phase({}, copying=True)
MAIN = Phase(
    {
        **dict.fromkeys(PLANS, 1.0),
        **dict.fromkeys(("greeting", "recall", "failed", "long"), 0.6),
        **dict.fromkeys(("mapping", "third_turn", "think_call"), 1.5),
        **dict.fromkeys(("parallel", "repeat"), 2.0),
        **dict.fromkeys(("named", "no_tool"), 3.0),
    },
    choices=0.5,
)
FINISH = Phase(
    {
        **MAIN.weights,
        **dict.fromkeys(("answers", "long"), 1.5),
        **dict.fromkeys(("strings", "quoted"), 3.0),
        **dict.fromkeys(("named", "repeat"), 4.0),
        **dict.fromkeys(("parallel",), 8.0),
    },
    choices=0.3,
)
"""More of what is learnt last."""

PHASES: tuple[tuple[float, Phase], ...] = ((0.1, COPYING), (0.89, MAIN), (1.0, FINISH))
"""The phases of a run, each with the share of the steps at which it ends."""

_FORMS: tuple[tuple[Form, ...], tuple[float, ...]] = (("openai", "bare", "terse"), (0.6, 0.2, 0.2))

POOL = 384
GRAIN = 64
FIRST = 15.0
"""The loss of a turn's first token: whether to call, which is easily drowned by all that is copied."""

Render = Callable[..., str]


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of a conversation, and how much loss each carries: none where the model does not write."""

    ids: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples for one step, and the number of the conversation that follows their pool.

    They fill at most `rows` rows of `length` ids. Few shapes ever occur, because kernels are made for each.
    """

    examples: list[Example]
    rows: int
    length: int
    following: int


def renderer() -> Render:
    """The chat template, compiled as Hugging Face does: call it with `messages`, `tools` and so on."""
    from jinja2 import Environment

    environment = Environment(trim_blocks=True, lstrip_blocks=True)  # only the model's own template
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE.read_text()).render


class Corpus:
    """Conversations of one seed."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._render = renderer()
        self._header: list[int] = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False).ids
        self._end: int = tokenizer.encode("<|im_end|>", add_special_tokens=False).ids[0]

    def example(self, number: int, phase: Phase) -> Example:
        """Conversation `number` as this phase writes it, tokenized."""
        made = conversation(self._seed, number, phase)
        ids: list[int] = self._tokenizer.encode(rendered(made, self._render), add_special_tokens=False).ids
        return Example(ids, self._weigh(ids, made.think))

    def _weigh(self, ids: list[int], last_only: bool) -> list[float]:
        """The loss of each id. The model writes from the header of an assistant's turn to its end token."""
        weights = [0.0] * len(ids)
        size = len(self._header)
        begins = [at for at in range(size, len(ids)) if ids[at - size : at] == self._header]
        for begin in begins[-1:] if last_only else begins:
            end = ids.index(self._end, begin)
            weights[begin : end + 1] = [FIRST] + [1.0] * (end - begin)
        return weights


def conversation(seed: int, number: int, phase: Phase) -> Conversation:
    """Training conversation `number` of a seed, as this phase writes it."""
    rng = random.Random(f"training/{seed}/{number}")
    author = Author(Lexicon(rng, held_out=False, common=common_words()))
    (form,) = rng.choices(*_FORMS)
    if phase.copying:
        kind = rng.choice(("repeat", "repeat", "repeat", "greeting", "single", "quoted", "strings", "answer"))
        return author.write(kind, rng.choice(("terse", "terse", "bare", form)), before=0)
    if rng.random() < phase.choices:
        return author.choose(form)
    (kind,) = rng.choices(list(phase.weights), list(phase.weights.values()))
    before = rng.choice((0, 0, 1, 2, 3)) if kind not in ("long", "third_turn", "recall") else None
    return author.write(kind, form, before)


def rendered(made: Conversation, render: Render) -> str:
    """The text of a conversation, as prompt and output together."""
    turns = list(made.turns)
    if made.think:
        wanted = turns[made.wanted]
        turns = turns[: made.wanted + 1]
    shown: list[dict[str, Any]] = messages(made.system, tuple(turns))
    if made.think:
        shown[-1]["content"] = written_by(wanted.reasoning, wanted.content)
    return render(messages=shown, tools=list(made.tools), bos_token=BOS)


def phase_at(progress: float) -> Phase:
    """The phase when this share of the steps is done."""
    return next((phase for end, phase in PHASES if progress < end), PHASES[-1][1])


def batches(corpus: Corpus, first: int, progress: Callable[[], float], tokens: int) -> Iterator[Batch]:
    """Conversations of like length in groups of at most about `tokens` ids, from conversation `first` on.

    `progress`, the share of the steps that is done, is asked whenever `POOL` more conversations are written.
    """
    while True:
        phase = phase_at(progress())
        examples = [corpus.example(number, phase) for number in range(first, first + POOL)]
        examples.sort(key=lambda example: len(example.ids))
        groups = []
        while examples:
            length = -len(examples[-1].ids) // GRAIN * -GRAIN  # rounded up
            rows = max(1, tokens // length)
            groups.append(Batch(examples[-rows:], rows, length, first + POOL))
            del examples[-rows:]
        random.Random(first).shuffle(groups)
        first += POOL
        yield from groups
