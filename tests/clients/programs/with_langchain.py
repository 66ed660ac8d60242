"""LangChain's client of OpenAI."""

from checks import LONG, MODEL, PARIS, URL, raised, run
from cities import City, Weather
from langchain_core.exceptions import ContextOverflowError
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    model=MODEL, base_url=URL, api_key="none", max_retries=0, temperature=0, max_tokens=80
)


@tool
def weather(city: City) -> str:
    """The weather of a city."""
    return city.value


def check_answer():
    assert "Paris" in model.invoke(PARIS).content


def check_stream():
    assert "Paris" in "".join(chunk.content for chunk in model.stream(PARIS))


def check_call():
    (call,) = model.bind_tools([weather], tool_choice="any").invoke(PARIS).tool_calls
    assert call["name"] == "weather" and call["args"]["city"] in {"Paris", "Rome"}


def check_structured_output_by_schema():
    structured = model.with_structured_output(Weather, method="json_schema")
    assert structured.invoke(PARIS).city in City


def check_structured_output_by_call():
    structured = model.with_structured_output(Weather, method="function_calling")
    assert structured.invoke(PARIS).city in City


def check_overflow_is_its_own_error():
    for ask in (lambda: model.invoke(LONG), lambda: list(model.stream(LONG))):
        raised(ContextOverflowError, ask)


run(globals())
