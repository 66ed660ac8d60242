"""Two texts from one event loop, which stays free: they share every pass over the weights.

python two_at_once.py big.gguf small.gguf "import " "class Queue:"
"""

import asyncio
import sys

import edgespec


async def write(session: edgespec.AsyncSession, prompt: str) -> str:
    async with session.stream(prompt, max_tokens=32) as events:
        return prompt + "".join([event.text async for event in events])


async def main(model: str, draft: str, *prompts: str) -> None:
    settings = edgespec.LoadSettings(
        model=model, draft=draft, memory_budget="1GiB", n_parallel=len(prompts)
    )
    with await asyncio.to_thread(edgespec.load, settings) as session:
        twin = edgespec.AsyncSession(session)
        for text in await asyncio.gather(*(write(twin, prompt) for prompt in prompts)):
            print(text)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
