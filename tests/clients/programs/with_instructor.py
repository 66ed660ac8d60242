"""Instructor, which wants objects."""

import instructor
import openai
from checks import MODEL, PARIS, URL, run
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


class People(BaseModel):
    people: list[Person]


def asked(mode, kind):
    client = instructor.from_openai(openai.OpenAI(base_url=URL, api_key="none"), mode=mode)
    messages = [{"role": "user", "content": f"Ann is 5 years old. {PARIS}"}]
    return client.chat.completions.create(
        model=MODEL, messages=messages, response_model=kind, temperature=0, max_tokens=120
    )


def check_by_a_call():
    assert isinstance(asked(instructor.Mode.TOOLS, Person), Person)


def check_by_a_schema():
    assert isinstance(asked(instructor.Mode.JSON_SCHEMA, Person), Person)


run(globals())
