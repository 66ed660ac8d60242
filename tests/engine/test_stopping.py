from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgespec.engine.transcript import Transcript
from edgespec.errors import UsageError
from fake_model import FakeVocabulary
from sentences import refuses


def shown(stop: Sequence[str], *pieces: bytes) -> list[str]:
    """Text that each piece adds, and the text's end."""
    text = transcript(stop, *pieces)
    added = [text.take(token, 0).text for token in range(len(pieces))]
    text.cancel()
    return [*added, text.text[len("".join(added)) :]]


def transcript(stop: Sequence[str], *pieces: bytes) -> Transcript:
    """A transcript in which token i is the i-th piece."""
    vocabulary = FakeVocabulary(1 + len(pieces), pieces=[*pieces, b""])
    return Transcript(vocabulary, stop, 99, "length")


def test_a_character_is_shown_when_its_last_byte_has_come() -> None:
    first, second, third = "€".encode()[:1], "€".encode()[1:2], "€".encode()[2:]
    assert shown((), first, second, third) == ["", "", "€", ""]


def test_bytes_that_are_no_character_become_replacement_characters() -> None:
    assert "".join(shown((), b"a\xffb", b"\xe2\x82")) == "a\ufffdb\ufffd"


def test_text_that_may_still_become_a_stop_string_is_held_back() -> None:
    assert shown(["\n\n"], b"a\n", b"b\n") == ["a", "\nb", "\n"]


def test_a_stop_string_may_be_split_inside_a_character() -> None:
    split = "né".encode()
    assert shown(["é"], split[:2], split[2:]) == ["n", "", ""]


@pytest.mark.parametrize("stop", [["two", "one"], ["one", "two"]])
def test_the_earliest_stop_string_ends_the_text_whichever_was_named_first(stop: list[str]) -> None:
    assert shown(stop, b"zero one two one") == ["zero ", ""]


@pytest.mark.parametrize("stop", [["bcd", "c"], ["c", "bcd"]])
def test_of_stop_strings_within_each_other_the_one_that_is_complete_first_counts(
    stop: list[str],
) -> None:
    """It holds where the text comes letter by letter, too."""
    assert shown(stop, b"abcd") == ["ab", ""]


@pytest.mark.parametrize("stop", [["bcd", "cd"], ["cd", "bcd"]])
def test_of_stop_strings_that_are_complete_together_the_longer_one_is_cut_off(
    stop: list[str],
) -> None:
    assert shown(stop, b"abcd") == ["a", ""]


texts = st.text(alphabet="abé", max_size=20)
stops = st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=3)


@given(texts, stops, st.lists(st.integers(0, 40), max_size=8))
def test_the_text_does_not_depend_on_how_the_bytes_are_cut(
    text: str, stop: list[str], cuts: list[int]
) -> None:
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    whole = "".join(shown(stop, data))
    assert "".join(shown(stop, *pieces)) == whole


@given(texts, stops)
def test_no_stop_string_is_ever_shown(text: str, stop: list[str]) -> None:
    whole = "".join(shown(stop, text.encode()))
    assert text.startswith(whole)
    assert not any(string in whole for string in stop)


@pytest.mark.parametrize("stop", ["END", [""], ["a", ""]])
def test_stop_is_a_list_of_strings_with_something_in_them(stop: list[str]) -> None:
    with refuses(UsageError):
        transcript(stop)
