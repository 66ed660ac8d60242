"""Hugging Face's smolagents."""

from checks import MODEL, PARIS, URL, run
from smolagents import OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(model_id=MODEL, api_base=URL, api_key="none", temperature=0, max_tokens=80)
ASK = [{"role": "user", "content": [{"type": "text", "text": PARIS}]}]


@tool
def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Name of the city.

    """
    return f"sunny in {city}"


def check_answer():
    assert "Paris" in model(ASK).content


def check_stream():
    assert "Paris" in "".join(part.content or "" for part in model.generate_stream(ASK))


def check_call():
    (call,) = model.generate(ASK, tools_to_call_from=[weather]).tool_calls
    assert call.function.name == "weather"


def check_agent():
    agent = ToolCallingAgent(tools=[weather], model=model, max_steps=1, verbosity_level=0)
    agent.run(PARIS)
    (step,) = (step for step in agent.memory.steps if getattr(step, "tool_calls", None))
    assert step.tool_calls[0].name in {"weather", "final_answer"}


run(globals())
