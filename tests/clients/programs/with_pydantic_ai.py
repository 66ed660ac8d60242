"""Pydantic AI."""

import asyncio

from checks import MODEL, PARIS, URL, run
from cities import City, Weather
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none"))
SETTINGS = {"temperature": 0.0, "max_tokens": 80}


def check_answer():
    assert "Paris" in Agent(model, model_settings=SETTINGS).run_sync(PARIS).output


def check_stream():
    async def read():
        async with Agent(model, model_settings=SETTINGS).run_stream(PARIS) as answer:
            return await answer.get_output()

    assert "Paris" in asyncio.run(read())


def check_output_by_a_call():
    agent = Agent(model, output_type=Weather, model_settings=SETTINGS)
    assert agent.run_sync(PARIS).output.city in City


def check_output_by_a_schema():
    agent = Agent(model, output_type=NativeOutput(Weather), model_settings=SETTINGS)
    assert agent.run_sync(PARIS).output.city in City


run(globals())
