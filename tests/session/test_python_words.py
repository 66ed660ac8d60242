"""Python programs may use keywords and pydantic classes; other words are refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import edgespec
from edgespec.errors import GrammarError, UsageError
from edgespec.models.embedded import embedded_pair
from sentences import refuses

MESSAGES = [{"role": "user", "content": "write gcd"}]
TEMPLATE = "{{ topic }}{% for m in messages %}# {{ m.role }}: {{ m.content }}\n{% endfor %}def "
DRAWN = {"temperature": 1.5, "seed": 7}


@pytest.fixture(scope="module")
def session():
    with edgespec.load(embedded_pair().target, memory_budget="1GiB", n_parallel=2) as loaded:
        loaded.use_chat_template(TEMPLATE)
        yield loaded


def test_load_takes_settings_as_keywords(session: edgespec.Session) -> None:
    assert session.memory.budget_bytes == 1 << 30
    assert session.n_parallel == 2


@pytest.mark.parametrize("call", ["generate", "chat"])
def test_sampling_fields_are_keywords(session: edgespec.Session, call: str) -> None:
    def written(**fields: object) -> tuple[int, ...]:
        if call == "generate":
            return session.generate("def ", max_tokens=8, **fields).tokens  # type: ignore[arg-type]
        with session.chat(MESSAGES, max_tokens=8, **fields) as answer:  # type: ignore[arg-type]
            return (*(event.token for event in answer),)

    drawn = written(sampling=edgespec.SamplingParams(**DRAWN))
    assert written(**DRAWN) == drawn != written()
    assert written(sampling=edgespec.SamplingParams(temperature=1.5, seed=1), seed=7) == drawn


def test_other_keywords_are_refused_with_the_nearest(session: edgespec.Session) -> None:
    calls: list[Callable[..., object]] = [session.stream, session.generate]
    for call in (*calls, session.chat):
        said = MESSAGES if getattr(call, "__name__", "") == "chat" else "def "
        with refuses(UsageError):
            call(said, temprature=3)


@pytest.mark.parametrize("prompt", [["a", "b"], MESSAGES])
def test_several_texts_and_messages_are_told_where_they_go(
    session: edgespec.Session, prompt: object
) -> None:
    with refuses(UsageError):
        session.generate(prompt)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "made",
    [
        lambda: edgespec.json_schema({"type": "nothing"}),
        lambda: edgespec.regular_expression("("),
        lambda: edgespec.lark_grammar("start: ("),
    ],
)
def test_a_wrong_grammar_is_refused_where_it_is_made(made: Callable[[], object]) -> None:
    with pytest.raises(GrammarError):
        made()
