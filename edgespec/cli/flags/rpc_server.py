"""The flags of `edgespec rpc-server` and its `--help` text. Values stay text."""

from __future__ import annotations

from argparse import ArgumentParser

HOST, PORT = "127.0.0.1", 50052

_DESCRIPTION = """\
Lend this machine's memory and processor, or its GPUs, to a model on another machine: it runs there
with --rpc HOST:PORT, and layers of the target are held and computed here. llama.cpp's own programs
can use the server, too, and edgespec can use theirs; both need the same version of llama.cpp."""

_EXAMPLES = """\
examples:
  edgespec rpc-server --memory-budget 2GiB
  ssh -N -L 50052:127.0.0.1:50052 USER@THIS-MACHINE     (on the other machine, which then says:)
  edgespec generate -m big.gguf -md small.gguf --rpc 127.0.0.1:50052 -p 'Once upon a time'

llama.cpp calls this a proof of concept, fragile and insecure: never run it on an open network or in
a sensitive environment. Nothing is encrypted and nobody is asked for a password: whoever reaches
the port can probably take over this account. Therefore it is reached from this machine only, and
others come through SSH, as above, or WireGuard: --host names an address that only its peers reach.
It serves one client at a time."""


def add_to(parser: ArgumentParser) -> None:
    parser.description, parser.epilog = _DESCRIPTION, _EXAMPLES
    parser.add_argument("--host", metavar="ADDRESS", help=f"address to listen on (default: {HOST})")
    parser.add_argument("-p", "--port", metavar="N", help=f"port (default: {PORT})")
    parser.add_argument(
        "--memory-budget",
        metavar="SIZE",
        help="of the whole server process where the processor computes, like 2GiB or 50%% "
        "(default: auto, what is free now less a margin)",
    )
    parser.add_argument(
        "-t", "--threads", metavar="N", help="(default: one for each physical core)"
    )
