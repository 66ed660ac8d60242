"""OpenAI's own client."""

import asyncio

import openai
from checks import LONG, MODEL, PARIS, URL, raised, run
from cities import City, Weather

client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
ASK = [{"role": "user", "content": PARIS}]


WEATHER = openai.pydantic_function_tool(Weather, name="weather")


def check_chat():
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=24, temperature=0)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.total_tokens > answer.usage.completion_tokens > 0


def check_stream():
    stream = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_completion_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert "Paris" in text and chunks[-1].usage.completion_tokens > 0


def check_asynchronous_stream():
    async def read():
        async with openai.AsyncOpenAI(base_url=URL, api_key="none") as asynchronous:
            stream = await asynchronous.chat.completions.create(
                model=MODEL, messages=ASK, max_tokens=5, stream=True
            )
            return [chunk async for chunk in stream]

    assert asyncio.run(read())[-1].choices[0].finish_reason == "length"


def check_text_completion():
    answer = client.completions.create(
        model=MODEL, prompt="1, 2, 3,", max_tokens=6, temperature=0, stop="", suffix="", logprobs=2
    )
    assert "4" in answer.choices[0].text
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens


def check_parsed_answer():
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASK, response_format=Weather, max_tokens=60, temperature=0
    )
    assert answer.choices[0].message.parsed.city in City


def check_required_call():
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASK, tools=[WEATHER], tool_choice="required", max_tokens=80
    )
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Weather)


def check_named_call_in_a_stream():
    choice = {"type": "function", "function": {"name": "weather"}}
    with client.chat.completions.stream(
        model=MODEL, messages=ASK, tools=[WEATHER], tool_choice=choice, max_tokens=80
    ) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls[0].function.name == "weather"


def check_answer_to_a_call():
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    answer = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[WEATHER], max_tokens=12
    )
    assert answer.choices[0].message.role == "assistant"


def check_continued_answer():
    begun = [*ASK, {"role": "assistant", "content": "The capital of France is"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    answers = [
        client.chat.completions.create(
            model=MODEL, messages=begun, max_tokens=4, temperature=0, extra_body=extra
        )
        for extra in ({}, fields)
    ]
    first, second = (answer.choices[0].message.content for answer in answers)
    assert first == second and first.startswith(" Paris")


def check_fields_that_change_nothing():
    client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_completion_tokens=1,
        modalities=["text"],
        verbosity="low",
        prediction={"type": "content", "content": "Paris"},
        prompt_cache_retention="24h",
        user="a",
        store=False,
        extra_body={"functions": None, "audio": None, "tfs_z": 1.0, "mirostat_mode": 0},
    )


def check_error_names_the_field():
    def ask():
        client.chat.completions.create(model=MODEL, messages=ASK, temperature=-1)

    assert raised(openai.BadRequestError, ask).param == "temperature"


def check_overflow():
    for ask in (
        lambda: client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": LONG}]
        ),
        lambda: client.completions.create(model=MODEL, prompt=LONG, stream=True),
    ):
        error = raised(openai.BadRequestError, ask)
        assert error.code == "context_length_exceeded"
        assert error.body["n_prompt_tokens"] > error.body["n_ctx"] > 0


def check_models():
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id).id == model.id


run(globals())
