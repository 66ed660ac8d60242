"""A FastAPI application that writes texts: streamed, ended when the client leaves, memory told.

MODEL=big.gguf DRAFT=small.gguf uvicorn web:app
"""

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict

from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

import edgespec


@asynccontextmanager
async def loaded(app: FastAPI) -> AsyncIterator[None]:
    settings = edgespec.LoadSettings(
        model=os.environ["MODEL"],
        draft=os.environ.get("DRAFT"),
        memory_budget=os.environ.get("BUDGET", "1GiB"),
        n_parallel=2,
    )
    with edgespec.load(settings) as session:
        app.state.session = session
        yield


app = FastAPI(lifespan=loaded)


@app.post("/write")
async def write(prompt: str, max_tokens: int = 64) -> StreamingResponse:
    """The text as it is written; a client that leaves ends it."""
    return await streamed(session().stream(prompt, max_tokens=max_tokens))


@app.post("/chat")
async def chat(messages: list[dict[str, str]], max_tokens: int = 64) -> StreamingResponse:
    """The answer to a conversation, as it is written."""
    return await streamed(session().chat(messages, max_tokens=max_tokens))


def session() -> edgespec.AsyncSession:
    return edgespec.AsyncSession(app.state.session)


async def streamed(
    text: AbstractAsyncContextManager[AsyncIterator[edgespec.TokenEvent]],
) -> StreamingResponse:
    """A text as it is written; 400 for a request that cannot be served."""
    begun = AsyncExitStack()
    try:
        events = await begun.enter_async_context(text)
    except (edgespec.UsageError, edgespec.ModelError) as error:
        raise HTTPException(400, str(error)) from error

    async def pieces() -> AsyncIterator[str]:
        async with begun:
            async for event in events:
                yield event.text

    return StreamingResponse(pieces(), media_type="text/plain")


@app.get("/memory")
def memory() -> dict[str, int]:
    """The budget, what was planned and the peak, in bytes."""
    return asdict(app.state.session.memory)
