"""A text service behind a Unix socket, for systemd: one line in, one answer out.

python service.py /run/edgespec/socket big.gguf small.gguf
"""

import asyncio
import os
import signal
import socket
import sys

import edgespec


def tell_systemd(state: str) -> None:
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect(address.replace("@", "\0", 1))
            notify.sendall(state.encode())


async def serve(path: str, session: edgespec.Session) -> None:
    twin = edgespec.AsyncSession(session)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            async with twin.stream(line.decode().rstrip("\n"), max_tokens=64, stop="\n") as events:
                async for event in events:
                    writer.write(event.text.encode())
                    await writer.drain()  # raises when the client has gone, which ends the text
            writer.write(b"\n")
            await writer.drain()
        writer.close()

    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    server = await asyncio.start_unix_server(answer, path)
    tell_systemd("READY=1")
    await stopped.wait()
    tell_systemd("STOPPING=1")
    server.close()
    session.cancel()


if __name__ == "__main__":
    settings = edgespec.LoadSettings(model=sys.argv[2], draft=sys.argv[3], memory_budget="1GiB")
    with edgespec.load(settings) as session:
        asyncio.run(serve(sys.argv[1], session))
