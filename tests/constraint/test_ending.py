"""When reasoning is ended, and by what."""

from __future__ import annotations

from threading import Event

from hypothesis import given
from hypothesis import strategies as st

from localagent.constraint.ending import Ending, ending_for
from localagent.prompt.segments import Prompt
from localagent.prompt.thinking import ThinkingPlan

MARKER = 1_000
"""The token of the closing marker; every other is a character."""


def spelled(text: str) -> list[int]:
    """The tokens of a text, in a vocabulary where the marker is one."""
    before, found, after = text.partition("</think>")
    return [*map(ord, before), *([MARKER] if found else []), *map(ord, after)]


def letters(text: str) -> list[int]:
    """The same where the marker is ordinary text."""
    return [*map(ord, text)]


class Output:
    """What a model writes under an ending, one token at a time; it reads its own output as a parser would."""

    def __init__(self, ending: Ending, inside: bool) -> None:
        self.ending = ending
        self.text = "<think>" if inside else ""

    @property
    def inside(self) -> bool:
        return "</think>" not in self.text and "<think>" in self.text

    def write(self, *texts: str) -> Output:
        """Tokens with these texts, whether or not others are due."""
        for text in texts:
            self.text += text
            token = MARKER if text == "</think>" else ord(text) if len(text) == 1 else -1
            self.ending.accept(token, text, self.inside)
        return self

    def due(self) -> str:
        """What is forced next, and then written."""
        said = ""
        while forced := list(self.ending.forced()):
            piece = "</think>" if forced[0] == MARKER else chr(forced[0])
            self.write(piece)
            assert list(self.ending.forced()) == forced[1:]
            said += piece
        return said


def begun(closing="\n</think>\n\n", inside=True, token=True, budget=None, flag=None) -> Output:
    tokenize = spelled if token else letters
    ending = Ending(closing, tokenize, budget=budget, flag=flag, inside=inside, token=token)
    return Output(ending, inside)


def test_after_so_many_tokens():
    for budget in range(5):
        output = begun(budget=budget)
        for _ in range(budget):
            assert output.due() == ""
            output.write("x")
        assert output.due() == "\n</think>\n\n"
        assert output.write(*"answer").due() == ""


def test_reasoning_that_ends_by_itself_is_left_alone():
    assert begun(budget=3).write("a", "b", "</think>", *"a long answer").due() == ""


def test_text_is_free_and_does_not_count():
    output = begun(inside=False, budget=2).write(*"some text", "<think>", "a")
    assert output.due() == ""
    assert output.write("b").due() == "\n</think>\n\n"


def test_no_reasoning_at_all():
    output = begun(inside=False, budget=0).write(*"text")
    assert output.due() == ""
    assert output.write("<think>").due() == "\n</think>\n\n"


def test_reasoning_that_begins_again_goes_on_with_what_is_left():
    output = begun(budget=2).write("a", "</think>", *"text")
    output.text = "<think>"
    output.ending.accept(-1, "<think>", True)
    assert output.write("b").due() == "\n</think>\n\n"
    output.text = "<think>"
    output.ending.accept(-1, "<think>", True)
    assert output.due() == "\n</think>\n\n"


def test_a_flag_ends_it_at_any_time():
    flag = Event()
    output = begun(flag=flag)
    assert output.write(*"still").due() == ""
    flag.set()
    assert output.due() == "\n</think>\n\n"
    assert output.write(*"answer").due() == ""
    flag = Event()
    output = begun(flag=flag, inside=False).write(*"text")
    flag.set()
    assert output.due() == ""
    assert output.write("<think>").due() == "\n</think>\n\n", "what begins later is ended, too"


def test_what_is_due_does_not_change_when_the_flag_is_taken_back():
    flag = Event()
    flag.set()
    output = begun(flag=flag)
    assert output.ending.forced()
    flag.clear()
    assert output.due() == "\n</think>\n\n"


def test_white_space_that_stands_there_is_not_written_again():
    assert begun(budget=2).write("a", "\n").due() == "</think>\n\n"
    assert begun("\n\n</think>", budget=1).write("\n\n").due() == "</think>"
    assert begun("\n\n</think>", budget=2).write("a", "\n").due() == "\n</think>"
    assert begun("</think>", budget=2).write("a", "\n").due() == "</think>"


def test_a_marker_that_is_a_token_is_never_half_written():
    """`</` in ordinary tokens is text there, and what would complete it is, too."""
    assert begun(budget=2).write("a", "</").due() == "\n</think>\n\n"


def test_a_marker_that_is_text_may_be_half_written():
    assert begun(token=False, budget=2).write("a", "\n</th").due() == "ink>\n\n"
    assert begun("</think>", token=False, budget=2).write("a", "\n</th").due() == "ink>"
    assert begun("</think>", token=False, budget=2).write("a", "</thank").due() == "</think>"


def test_a_character_is_completed_first():
    output = begun(budget=1)
    for _ in range(3):
        assert output.write("").due() == ""
    assert output.write("🦜").due() == "\n</think>\n\n"


def test_tokens_without_text_do_not_put_it_off_for_ever():
    output = begun(budget=1).write("a", "", "", "")
    assert output.due() == ""
    assert output.write("").due() == "\n</think>\n\n"


def test_another_token_than_the_one_that_is_due():
    """A host may end a generation, or go on elsewhere; nothing is forced that nobody waits for."""
    output = begun("</think>\n\n\n", budget=0)
    assert output.ending.forced()
    output.write("</think>", "x")
    assert output.due() == ""


@given(st.lists(st.sampled_from(["x", "\n", " ", "", "</", "ab"]), max_size=30), st.integers(0, 12))
def test_whatever_it_says_the_reasoning_ends_within_the_budget(pieces, budget):
    output, said = begun(budget=budget), 0
    for piece in pieces:
        if output.ending.forced():
            break
        output.write(piece)
        said += 1
    forced = output.due()
    if forced:
        assert not output.inside
        assert output.text.endswith("\n</think>\n\n")
        assert said >= budget
    else:
        assert said < budget or (pieces[said - 1] == "" and said < budget + 4)


# -- of a turn ----------------------------------------------------------------------------------------------


class Host:
    """As much of one as an ending needs."""

    special_tokens = frozenset({"</think>"})

    def __init__(self) -> None:
        self.vocabulary = self

    def tokenize_segments(self, segments, continued=False):
        assert continued, "no token for the beginning stands in the middle"
        (segment,) = segments
        assert segment.special
        return tuple(spelled(segment.text))


OPEN, SHUT = Prompt((1,), "", inside="reasoning"), Prompt((1,), "")
PLAN = ThinkingPlan(budget=0, closing="\n</think>")


def test_the_ending_of_a_turn():
    ending = ending_for(Host(), PLAN, None, OPEN)
    assert ending.forced() == (ord("\n"), MARKER)
    assert ending_for(Host(), PLAN, None, SHUT).forced() == ()
    flag = Event()
    ending = ending_for(Host(), ThinkingPlan(closing="</think>"), flag, OPEN)
    assert ending.forced() == ()
    flag.set()
    assert ending.forced() == (MARKER,)


def test_the_ending_of_a_turn_knows_whether_the_marker_is_a_token():
    for closing, due in (("</think>", "</think>"), ("</thunk>", "unk>")):
        ending = ending_for(Host(), ThinkingPlan(budget=1, closing=closing), None, OPEN)
        ending.accept(-1, "</th", True)
        assert list(ending.forced()) == spelled(due)


def test_most_turns_need_none():
    assert ending_for(Host(), ThinkingPlan(closing="</think>"), None, OPEN) is None
    assert ending_for(Host(), ThinkingPlan(budget=1), None, OPEN) is None
    assert ending_for(Host(), ThinkingPlan(budget=1), Event(), OPEN) is None
    host = Host()
    host.vocabulary = None  # it plays back a recording
    assert ending_for(host, PLAN, None, OPEN) is None
