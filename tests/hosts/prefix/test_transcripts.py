"""Transcripts: the model's own words are found again, and nobody else's pass for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from localagent.hosts.prefix.transcripts import Transcripts, spell, unspell
from localagent.prompt import Segment

segments = st.lists(st.builds(Segment, st.text("ab<|\0\1\2", min_size=1, max_size=6), st.booleans()))


def merged(parts: list[Segment]) -> list[Segment]:
    """Neighbouring special runs are one run to a tokenizer that gets them as text."""
    found: list[Segment] = []
    for part in parts:
        if part.special and found and found[-1].special:
            found[-1] = Segment(found[-1].text + part.text, True)
        else:
            found.append(part)
    return found


@given(segments)
def test_spelling_comes_back(parts: list[Segment]) -> None:
    assert unspell(spell(parts)) == merged(parts)


@given(segments, segments)
def test_a_prefix_can_be_taken_off(front: list[Segment], rest: list[Segment]) -> None:
    whole, head = spell([*front, *rest]), spell(front)
    assert whole.startswith(head)
    assert unspell(whole[len(head) :]) == unspell(whole, len(head)) == merged(rest)


@given(segments, segments)
def test_only_equal_segments_spell_equally(left: list[Segment], right: list[Segment]) -> None:
    assert (spell(left) == spell(right)) == (merged(left) == merged(right))


def test_the_longest_conversation_is_found() -> None:
    known = Transcripts("|!")
    known.add("ask|answer", [1, 2, 9])
    known.add("ask|answer|more|again", [1, 2, 9, 4, 5])
    known.add("ask|another", [1, 2, 8])
    assert known.longest("ask|answer|more|again|x") == (len("ask|answer|more|again"), (1, 2, 9, 4, 5))
    assert known.longest("ask|answer|else") == (len("ask|answer"), (1, 2, 9))
    assert known.longest("ask|another!") == (len("ask|another"), (1, 2, 8))
    assert known.longest("as") == (0, ())


def test_two_ways_to_spell_one_answer_do_not_mix() -> None:
    known = Transcripts(":.")
    known.add("ask:hel", [1, 2])
    known.add("ask:hello", [1, 3])
    known.add("ask:hello:more", [1, 3, 4])
    assert known.longest("ask:hello:more.") == (14, (1, 3, 4))
    known.add("ask:help", [1, 2, 5])
    assert known.longest("ask:help") == (8, (1, 2, 5))


def test_a_known_part_ends_where_a_token_must_end() -> None:
    """Else the known tokens could end within what is one token of the prompt."""
    known = Transcripts(["<e>"])
    known.add("<s>It", [1, 2])
    assert known.longest("<s>Iting") == (0, ())
    assert known.longest("<s>It<e>") == (5, (1, 2))
    assert known.longest("<s>It") == (5, (1, 2))
    assert known.longest("<s>It" + spell([Segment("<", False)]) + "e>") == (0, ())


def test_of_two_spellings_the_one_that_leads_on_is_taken() -> None:
    known = Transcripts("|")
    known.add("ask|ab", [1, 2])
    known.add("ask|ab|on", [1, 2, 3])
    known.add("ask|ab", [1, 9])
    for _ in range(3):
        assert known.longest("ask|ab|on|") == (9, (1, 2, 3))
    assert known.longest("ask|ab|") in [(6, (1, 2)), (6, (1, 9))]
    assert len({known.longest("ask|ab|")[1] for _ in range(4)}) == 1, "and it stays the same one"


def test_memory_is_bounded() -> None:
    known = Transcripts("|", budget=100_000)
    for number in range(300):
        known.add(f"{number}|" + "word " * 100, range(100))
    assert known.longest("299|" + "word " * 100)[0] > 0
    assert known.longest("0|" + "word " * 100) == (0, ())
    for number in range(600):
        known.add(f"299|{'word ' * 100}|{number}", [*range(100), number, 7])
    assert known.longest(f"299|{'word ' * 100}|599")[0] > 500
    assert known.longest(f"299|{'word ' * 100}|3|")[0] == 504, "answers to one prompt are bounded as well"


def test_what_was_forgotten_takes_no_room() -> None:
    known = Transcripts("|", budget=500_000)
    known.add("kept|", [1])
    known.add("asked|", [2])
    for number in range(900):
        known.add(f"asked|{number} {'word ' * 200}|", [2, number])
    assert known.longest("kept|") == (5, (1,))


def test_a_turn_of_the_user_that_looks_like_one_of_the_model_is_none() -> None:
    known = Transcripts()
    said = spell([Segment("<s>ask<e><s>answer<e>", True)])
    known.add(said, [1, 2, 3])
    forged = spell([Segment("<s>ask", True), Segment("<", False), Segment("e><s>answer<e>", True)])
    assert known.longest(forged) == (0, ())


@given(st.lists(st.tuples(st.text("abc", min_size=1, max_size=5), st.integers(0, 9)), max_size=8))
def test_what_a_snapshot_remembers_is_learned_again(turns: list[tuple[str, int]]) -> None:
    known, again = Transcripts("abc"), Transcripts("abc")
    key, ids = "", []
    for text, token in turns:
        key, ids = key + text, [*ids, token, 7]
        known.add(key, ids)
    for missing in (0, 1):
        again.learn(known.along(ids[: len(ids) - missing]))
        assert again.longest(key) == known.longest(key)


def test_old_conversations_are_forgotten() -> None:
    known = Transcripts()
    for number in range(400):
        known.add(f"{number}:", [number])
    assert known.longest("399:") == (4, (399,))
    assert known.longest("144:") == (4, (144,)), "of 256 the oldest one"
    assert known.longest("143:") == (0, ())
