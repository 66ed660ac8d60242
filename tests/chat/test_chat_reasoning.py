"""Reasoning and answer told apart, however the text is cut into pieces."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.chat.prompts import ChatPrompts
from edgespec.chat.reasoning import Marks, ReasoningSplitter, marks_of
from edgespec.engine.transcript import Transcript
from edgespec.ports.language_model import ChatFormat
from fake_model import FakeVocabulary

MARKS = Marks("<think>", "</think>")


def split(text: str, cuts=(), inside=False, marks=MARKS) -> dict[str, str]:
    splitter = ReasoningSplitter(marks, marks.begin * inside)
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    parts = []
    for begin, end in itertools.pairwise(places):
        parts += splitter.push(text[begin:end])
    parts += splitter.finish()
    kinds = {"reasoning": "", "answer": ""}
    for part in parts:
        assert part.text, "a part is never empty"
        kinds[part.kind] += part.text
    return kinds


def test_reasoning_comes_before_the_answer():
    text = "<think>\nLet me see.\n</think>\n\nFour."
    assert split(text) == {"reasoning": "Let me see.", "answer": "Four."}


def test_a_prompt_may_have_opened_it():
    assert split("Let me see.\n</think>\nFour.", inside=True) == {
        "reasoning": "Let me see.",
        "answer": "Four.",
    }


def test_a_mark_in_the_middle_of_an_answer_is_text():
    text = "Write <think> and </think>."
    assert split(text) == {"reasoning": "", "answer": text}


@given(
    st.text(alphabet="ab<>/think \n", max_size=20),
    st.lists(st.integers(0, 40), max_size=6),
    st.booleans(),
    st.booleans(),
)
def test_where_the_pieces_are_cut_does_not_matter(text, cuts, begins, inside):
    whole = ("<think>" if begins else "") + text + "</think> done"
    assert split(whole, cuts, inside) == split(whole, (), inside)


@pytest.mark.parametrize(
    ("template", "marks"),
    [
        ("{{ content.split('</think>')[-1] }}", MARKS),
        ("...[THINK]...", Marks("[THINK]", "[/THINK]")),
        ("{{ messages }}", None),
    ],
)
def test_the_template_says_which_marks_there_are(template, marks):
    assert marks_of(template) == marks


@pytest.mark.parametrize(
    ("end", "opened"), [("<|assistant|><think>\n", "<think>"), ("<think>\n\n</think>\n\n", "")]
)
def test_a_prompt_that_ends_with_the_mark_has_opened_it(end, opened):
    prompts = ChatPrompts("fake", ChatFormat(), lambda text: [1], "{{ messages[0].content }}" + end)
    assert prompts.prompt([{"role": "user", "content": "hi"}]).opened == opened


# Marks that are control tokens add no text


def test_text_that_is_held_for_a_stop_string_stays_before_the_mark() -> None:
    pieces = {1: b"first en", 8: b"", 2: b"so"}
    vocabulary = FakeVocabulary(9, pieces=[pieces.get(token, b"") for token in range(9)])
    transcript = Transcript(vocabulary, ("end",), 99, "length", {8: "</think>"})
    splitter = ReasoningSplitter(MARKS, MARKS.begin)
    parts = [
        (part.kind, part.text)
        for token in (1, 8, 2)
        for part in splitter.push(transcript.take(token, 0).text)
    ]
    assert parts == [("reasoning", "first"), ("reasoning", " en"), ("answer", "so")]
    assert transcript.text == "first en</think>so"


def test_marks_that_add_no_text_are_known_by_their_tokens() -> None:
    tokens = {"<think>": [7], "</think>": [8], "<|tool|>": [9]}
    prompts = ChatPrompts(
        "fake",
        ChatFormat(control_tokens=frozenset({"<think>", "</think>", "</s>", "<|tool|>"})),
        lambda text: tokens.get(text, [1, 2]),
        "<think></think>{{ messages[0].content }}",
    )
    messages, tools = [{"role": "user", "content": "hi"}], [{"function": {"name": "f"}}]
    reasoning = {7: "<think>", 8: "</think>"}
    assert prompts.prompt(messages).hidden_marks == reasoning
    assert prompts.prompt(messages, tools).hidden_marks == reasoning | {9: "<|tool|>"}
