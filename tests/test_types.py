"""Public names pass a strict type checker, and show themselves to people."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import edgespec
from edgespec.settings.config import LoadFields, LoadSettings, SamplingFields

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/getting-started.md")
EXAMPLE = """
from pathlib import Path

import edgespec

settings = edgespec.LoadSettings(
    model="big.gguf",
    draft=Path("small.gguf"),
    memory_budget="4GiB",
    cache_type_k="q8_0",
    n_gpu_layers=3,
)
warm = edgespec.SamplingParams(temperature=0.7, seed=3, logit_bias={5: -1.0})
with edgespec.open_trace("trace.json") as trace, edgespec.load(settings, trace=trace) as session:
    for event in session.stream("Once", warm, stop="end"):
        print(event.text)
    messages = [{"role": "user", "content": "Hello"}]
    print(session.chat(messages).result.text)
    print(session.create_chat_completion(messages)["choices"])
    with session.create_chat_completion(messages, stream=True) as chunks:
        for chunk in chunks:
            print(chunk["choices"])
    print(session.create_completion("Once", max_tokens=3)["usage"])
    session.create_completion("Once").cancel()  # type: ignore[attr-defined]
with edgespec.load("big.gguf") as session:
    print(session.generate("Once", grammar=edgespec.json_schema({"type": "string"})).text)
with edgespec.load("big.gguf", memory_budget="4GiB", n_parallel=2, cache_type_k="q8_0") as session:
    twin = edgespec.AsyncSession(session)

    async def ask() -> None:
        print((await twin.generate("Once")).text)
        async with twin.stream("Once") as events:
            print([event.text async for event in events])

    session.generate("Once", temperature=0.7, seed=3, stop="end")
    twin.chat(messages, tools=[], template={"enable_thinking": False}, top_k=3)
    session.generate("Once", max_token=3)  # type: ignore[call-arg]
    session.stream("Once", temprature=0.5)  # type: ignore[call-arg]
    session.chat(messages, stopp="x")  # type: ignore[call-arg]
    twin.stream("Once", stopp="x")  # type: ignore[call-arg]
    twin.chat(messages, max_token=3)  # type: ignore[call-arg]
    twin.stream("Once", seeed=3)  # type: ignore[call-arg]
edgespec.load("big.gguf", memory_buget="4GiB")  # type: ignore[call-arg]
edgespec.LoadSettings(model="big.gguf", ctx=3)  # type: ignore[call-arg]
"""


@pytest.mark.long
def test_the_python_of_pages_and_examples_passes_a_strict_type_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    blocks = [EXAMPLE]
    for page in PAGES:
        blocks += re.findall(
            r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL
        )
    assert len(blocks) > len(PAGES)
    blocks += [path.read_text() for path in sorted((ROOT / "examples").glob("*.py"))]
    for number, block in enumerate(blocks):
        (tmp_path / f"example_{number}.py").write_text(block)
    known = ["--cache-dir", f".mypy_cache/{sys.platform}"]  # `make check` has typed the package
    command = [sys.executable, "-m", "mypy", "--strict", *known, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


def test_the_types_of_load_settings_know_every_public_setting() -> None:
    hidden = {name for name, field in LoadSettings.model_fields.items() if not field.repr}
    assert {"model", *LoadFields.__annotations__} == {*LoadSettings.known(), "options"} - hidden


def test_the_types_of_sampling_know_every_setting() -> None:
    assert SamplingFields.__annotations__.keys() == edgespec.SamplingParams.model_fields.keys()
