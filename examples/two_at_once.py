"""Two texts from one event loop: the second waits in line, and the loop stays free.

python two_at_once.py big.gguf small.gguf "import " "class Queue:"
"""

import asyncio
import sys

import edgespec


async def write(session: edgespec.AsyncSession, prompt: str) -> str:
    async with session.stream(prompt, max_tokens=32) as events:
        return prompt + "".join([event.text async for event in events])


async def main(model: str, draft: str, *prompts: str) -> None:
    settings = edgespec.LoadSettings(model=model, draft=draft, memory_budget="1GiB")
    with await asyncio.to_thread(edgespec.load, settings) as session:
        waiting = edgespec.AsyncSession(session)
        for text in await asyncio.gather(*(write(waiting, prompt) for prompt in prompts)):
            print(text)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
