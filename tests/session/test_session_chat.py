"""A session that converses: templates, OpenAI's shapes, log probabilities, grammars."""

import json
import math

import pytest

import edgespec
from edgespec.engine.settings import EngineSettings
from edgespec.errors import GrammarError
from edgespec.grammar.specification import Grammar, json_schema, unchecked_schema
from edgespec.models.embedded import embedded_pair
from edgespec.settings.config import LoadSettings, SamplingParams

TEMPLATE = """\
{%- for m in messages %}# {{ m.role }}: {{ m.content }}\n{% endfor %}
{%- if add_generation_prompt %}def {% endif %}"""
MESSAGES = [{"role": "user", "content": "write gcd"}]
WARM = SamplingParams(temperature=0.9, seed=3)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}

_CHOICES = [{"type": "object", "properties": {f"k{i}": {"const": i}}} for i in range(8)]
EXPLODING = {"allOf": [{"anyOf": _CHOICES} for _ in range(8)]}


@pytest.fixture(scope="module")
def session():
    pair = embedded_pair()
    with edgespec.load(LoadSettings(model=pair.target, draft=pair.draft)) as loaded:
        loaded.use_chat_template(TEMPLATE)
        yield loaded


@pytest.fixture
def always_guessing():
    """Guesses are always made: otherwise the clock would decide now this way, now that."""
    pair = embedded_pair()
    rules = EngineSettings(fallback="full", step_aside=False)
    with edgespec.load(LoadSettings(model=pair.target, draft=pair.draft), rules) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def alone():
    with edgespec.load(LoadSettings(model=embedded_pair().target)) as loaded:
        loaded.use_chat_template(TEMPLATE)
        yield loaded


def test_a_chat_is_the_text_that_follows_the_rendered_messages(session):
    prompt = session.chat_prompt(MESSAGES)
    assert prompt.text == "# user: write gcd\ndef "
    with session.chat(MESSAGES, max_tokens=8) as answer:
        text = "".join(event.text for event in answer)
    assert text == session.generate(prompt.tokens, max_tokens=8).text


def test_a_chat_completion_has_the_shape_of_openai(session):
    answer = session.create_chat_completion(MESSAGES, max_tokens=6, seed=1)
    choice = answer["choices"][0]
    assert answer["object"] == "chat.completion"
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["usage"]["total_tokens"] == 6 + answer["usage"]["prompt_tokens"]


def test_the_chunks_of_a_stream_add_up_to_the_whole(session):
    whole = session.create_chat_completion(MESSAGES, max_tokens=12)
    chunks = list(session.create_chat_completion(MESSAGES, stream=True, max_tokens=12))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    text = "".join(delta.get("content", "") for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_usage_comes_last_where_it_is_asked_for(session):
    options = {"include_usage": True}
    *_, last = session.create_completion("import ", stream=True, stream_options=options)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 16


def test_log_probabilities_are_those_of_the_target_alone(session, alone):
    options = {"max_tokens": 24, "logprobs": 3, "temperature": 0.9, "seed": 3}
    drafted = session.create_completion("def read(", **options)["choices"][0]
    target = alone.create_completion("def read(", **options)["choices"][0]
    assert drafted["text"] == target["text"]
    for ours, theirs in zip(
        drafted["logprobs"]["token_logprobs"], target["logprobs"]["token_logprobs"], strict=True
    ):
        assert ours == pytest.approx(theirs, abs=1e-4)


def test_the_most_probable_tokens_come_first_and_add_up_to_one(session):
    with session.stream("def ", max_tokens=3, logprobs=100) as events:
        for event in events:
            values = [value for _, value in event.logprobs.top]
            assert values == sorted(values, reverse=True)
            assert event.token == event.logprobs.top[0][0]  # greedy
            assert event.logprobs.logprob == values[0]
            assert 0.5 < math.fsum(map(math.exp, values)) <= 1 + 1e-9


def test_logprobs_in_a_chat_are_told_token_by_token(session):
    whole = session.create_chat_completion(MESSAGES, max_tokens=5, logprobs=True, top_logprobs=2)
    content = whole["choices"][0]["logprobs"]["content"]
    assert len(content) == 5
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * 5
    told = bytes(byte for entry in content for byte in entry["bytes"])
    assert told.decode() == whole["choices"][0]["message"]["content"]


@pytest.mark.parametrize("sampling", [None, WARM])
def test_a_schema_is_kept_and_costs_no_faithfulness(session, alone, sampling):
    texts = {
        each.generate("data = ", sampling, 80, grammar=json_schema(SCHEMA)).text
        for each in (session, alone)
    }
    (text,) = texts
    read = json.loads(text)
    assert isinstance(read["name"], str)
    assert isinstance(read["age"], int)


def test_a_regular_expression_and_a_grammar_are_kept(session):
    date = session.generate(
        "on ", None, 20, grammar=Grammar("regular expression", "[0-9]{4}-[0-9]{2}")
    ).text
    assert len(date) == 7
    assert date[4] == "-"
    answer = session.generate(
        "well, ", None, 20, grammar=Grammar("grammar", 'start: "yes" | "no"')
    ).text
    assert answer in {"yes", "no"}


@pytest.mark.parametrize(
    "grammar",
    [
        unchecked_schema({"type": "string", "minLength": 5, "maxLength": 2}),
        unchecked_schema(EXPLODING),
        Grammar("regular expression", "("),
        Grammar("grammar", "start: ("),
    ],
)
def test_a_grammar_that_cannot_be_met_is_refused_before_anything_runs(session, grammar):
    with pytest.raises(GrammarError):
        session.stream("a", grammar=grammar)
    assert session.generate("a", max_tokens=1).tokens


def test_an_answer_within_a_schema_that_explodes_ends_with_one_error(session):
    properties = {f"p{i}": {"type": "string"} for i in range(560)}
    exploding = json_schema({"type": "object", "properties": properties})
    with pytest.raises(GrammarError):
        session.generate("a", None, 100, grammar=exploding)
    assert session.generate("a", max_tokens=1).tokens


@pytest.mark.slow
def test_tokens_that_a_grammar_forces_are_guessed_for_free(always_guessing):
    names = {"const": "a constant that nobody could guess, 1729 and 4104"}
    with always_guessing.stream("data = ", max_tokens=80, grammar=json_schema(names)) as events:
        text = "".join(event.text for event in events)
        result = events.result
    assert text == '"a constant that nobody could guess, 1729 and 4104"'
    assert result.speculation.rounds < len(result.tokens) / 3


def test_chunks_that_nobody_takes_any_more_end_their_text(session) -> None:
    """The garbage collector had ended them, in the engine's thread as well, which then waited."""
    for _ in range(40):
        for _ in session.create_completion("one", stream=True, max_tokens=60):
            break
    assert session.generate("one", max_tokens=1).tokens
