"""Turns of `edgespec chat`: their seeds, what is kept of them, and what they end with."""

from __future__ import annotations

import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import ClassVar

import pytest

from edgespec.chat.dialogue import Dialogue
from edgespec.chat.prompts import ChatPrompt
from edgespec.cli.commands.chat import Chat
from edgespec.cli.console import Console
from edgespec.errors import EdgespecError
from edgespec.settings.config import GenerateSettings
from edgespec.values import GenerationResult, TokenEvent


class ScriptedAnswer:
    """A generation that says `words`."""

    def __init__(self, words: tuple[str, ...], reason: str) -> None:
        self._events = iter([TokenEvent(word, 1, "target", 0) for word in words])
        self.result = GenerationResult("".join(words), (1,), (1,) * len(words), reason)

    def __enter__(self) -> ScriptedAnswer:
        return self

    def __exit__(self, *error: object) -> None: ...

    def __iter__(self) -> Iterator[TokenEvent]:
        return self._events

    def cancel(self) -> None: ...


class Talker:
    """A session whose answers are given."""

    chat_sampling: ClassVar = {"temperature": 0.6, "top_k": 40}
    target = SimpleNamespace(n_ctx=256)

    def __init__(self, *answers: ScriptedAnswer | EdgespecError) -> None:
        self._answers = list(answers)
        self.seeds: list[int] = []

    def chat_prompt(self, messages) -> ChatPrompt:
        return ChatPrompt("", (1,), None, "")

    def stream(self, tokens, sampling, *others, **options) -> ScriptedAnswer:
        self.seeds.append(sampling.seed)
        self.sampling = sampling
        answer = self._answers.pop(0) if self._answers else ScriptedAnswer(("Yes.",), "stop")
        if isinstance(answer, EdgespecError):
            raise answer
        return answer


def chat(
    session: Talker, seed: int | None = None, **given: float
) -> tuple[Chat, Dialogue, io.StringIO]:
    dialogue, out = Dialogue(), io.StringIO()
    settings = GenerateSettings(seed=seed, **given)
    console = Console("never", quiet=True, stdout=out, stderr=out)
    return Chat(session, dialogue, settings, None, console), dialogue, out


def test_every_turn_draws_anew_and_a_seed_repeats_them_all():
    first, again = Talker(), Talker()
    for session in (first, again):
        talk, _, _ = chat(session, seed=7)
        for line in ("Is it?", "/reset", "Is it?", "Is it?"):
            talk.take(line)
    assert len(set(first.seeds)) == 3
    assert first.seeds == again.seeds
    assert first.seeds[0] == 7


def test_an_answer_that_was_stopped_before_its_first_word_leaves_no_turn():
    talk, dialogue, _ = chat(Talker(ScriptedAnswer((), "cancelled")))
    talk.take("Is it?")
    assert dialogue.turns == []


@pytest.mark.parametrize(
    "answer", [ScriptedAnswer(("Ye",), "cancelled"), ScriptedAnswer((), "stop")]
)
def test_an_answer_that_was_begun_or_is_empty_is_a_turn(answer):
    talk, dialogue, _ = chat(Talker(answer))
    talk.take("Is it?")
    assert [turn["role"] for turn in dialogue.turns] == ["user", "assistant"]


def test_the_first_failure_decides_the_exit_code_and_quiet_hides_none():
    talk, dialogue, out = chat(Talker(EdgespecError("the disk is full")))
    assert talk.take("Is it?")
    assert talk.take("/nothing")
    talk.take("Is it?")
    assert talk.exit_code == 1
    assert out.getvalue().startswith("error: the disk is full\nerror: /nothing is not a command")
    assert len(dialogue.turns) == 2


class ClosedPipe(io.StringIO):
    """A pipe whose reader has gone."""

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")


def test_a_conversation_ends_when_nobody_reads_its_answers():
    """`chat | head -1` had answered all further messages, too."""
    console = Console("never", quiet=True, stdout=ClosedPipe(), stderr=io.StringIO())
    talk = Chat(Talker(), Dialogue(), GenerateSettings(), None, console)
    with pytest.raises(BrokenPipeError):
        talk.take("Is it?")


def test_answers_are_sampled_as_the_model_recommends_but_for_what_was_given():
    session = Talker()
    talk, _, _ = chat(session, top_k=5)
    talk.take("Is it?")
    assert (session.sampling.temperature, session.sampling.top_k) == (0.6, 5)


class Counting(Talker):
    """A session whose prompts have ten tokens for each message."""

    target = SimpleNamespace(n_ctx=50)

    def chat_prompt(self, messages) -> ChatPrompt:
        return ChatPrompt("", tuple(range(10 * len(messages))), None, "")

    def stream(self, tokens, *others, **options) -> ScriptedAnswer:
        self.lengths = [*getattr(self, "lengths", ()), len(tokens)]
        return super().stream(tokens, *others, **options)


def test_a_conversation_longer_than_the_context_leaves_out_its_first_turns_until_half_is_free():
    session = Counting()
    talk, dialogue, _ = chat(session)
    for _ in range(5):
        talk.take("Is it?")
    assert session.lengths == [10, 30, 50, 10, 30]
    assert len(dialogue.turns) == 10
