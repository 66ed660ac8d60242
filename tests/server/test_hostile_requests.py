"""No request ends the server, is the server's fault, or breaks its budget."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgespec.cli.console import Console
from edgespec.cli.model_list import ModelList
from edgespec.completions.embeddings import EmbeddingRequest
from edgespec.completions.llama_fields import KNOWN
from edgespec.completions.protocols.message_requests import MessagesRequest
from edgespec.completions.protocols.response_requests import ResponsesRequest
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.memory import cgroups
from edgespec.settings.units import parse_size
from embedding_files import write_encoder
from gguf_files import tiny_llama
from server_running import TEMPLATE, serving_list

BUDGET = "224MiB"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
VECTORS, SIZE = "/v1/embeddings", "/v1/budget"
RESPONSES, TURNS, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
ANSWERS = {200, 400, 403, 404, 405, 408, 413, 503}
FIELDS = sorted(
    {*ChatRequest.model_fields, *CompletionRequest.model_fields, *KNOWN} - {"n_predict"}
)
CHARACTERS = st.characters(exclude_categories=["Cs"])
"""All that UTF-8 has; the default finds them by encoding each."""
NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([4095, 4096, -1, 1 << 31, 1 << 63, 10**30, 1e-300, 1e300, 1e308, 0.5]),
    st.floats(allow_nan=True, allow_infinity=True),
)
TEXTS = st.one_of(
    st.text(CHARACTERS, max_size=30),
    st.sampled_from(["", "\ud800", "<|endoftext|>", "a" * 5000, " " * 40_000, "1a" * 20_000]),
    st.sampled_from(["user", "system", "function", "json_object", "json_schema", "regex", "text"]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": TEXTS, "content": st.one_of(TEXTS, VALUES)}), max_size=3
)
FORMATS = st.fixed_dictionaries(
    {"type": st.sampled_from(["json_object", "json_schema", "regex", "grammar"])},
    optional={
        "schema": VALUES,
        "json_schema": st.fixed_dictionaries({"schema": VALUES}),
        "pattern": TEXTS,
        "grammar": TEXTS,
    },
)
PROMPTS = st.one_of(
    TEXTS,
    st.lists(NUMBERS, max_size=5),
    st.lists(st.one_of(TEXTS, st.lists(NUMBERS, max_size=3)), max_size=4),
)
BODIES = st.builds(
    lambda prompt, fields, known: json.dumps(
        {"messages": [{"role": "user", "content": "a"}]} | prompt | fields | known
    ).encode(errors="surrogatepass"),
    st.one_of(
        st.fixed_dictionaries({"prompt": PROMPTS}),
        st.fixed_dictionaries({"messages": st.one_of(MESSAGES, VALUES)}),
    ),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3),
    st.fixed_dictionaries(
        {"max_tokens": st.sampled_from([0, 1, 2, -3])},
        optional={
            "response_format": FORMATS,
            "stream": st.booleans(),
            "n": st.integers(1, 130),
        },
    ),
).filter(lambda body: b'"messages"' in body or b'"prompt"' in body)
PLAIN = st.builds(lambda body: json.dumps(drop(json.loads(body))).encode(), BODIES)
PART_TEXTS = ("text", "refusal", "thinking", "id", "name", "tool_use_id", "data")
PART_KINDS = (
    "text input_text output_text refusal reasoning_text summary_text input_image image document "
    "thinking tool_use tool_result x"
)
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(PART_KINDS.split())},
    optional=dict.fromkeys(PART_TEXTS, st.one_of(TEXTS, VALUES))
    | {"input": VALUES, "content": VALUES, "source": VALUES},
)
CONTENTS = st.one_of(TEXTS, st.lists(PARTS, max_size=3), VALUES)
ROLES = st.sampled_from(["user", "assistant", "system", "developer", "tool", "x", None, 1])
ITEMS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["message", "function_call", "function_call_output", "reasoning", "item_reference", 5]
        ),
        "role": ROLES,
        "content": CONTENTS,
        "output": CONTENTS,
        "summary": CONTENTS,
        "call_id": TEXTS,
        "name": TEXTS,
        "arguments": TEXTS,
    },
)


def bodies_of(
    kind: type[MessagesRequest | ResponsesRequest], start: st.SearchStrategy[dict], limit: str
) -> st.SearchStrategy[bytes]:
    """Bodies of a protocol whose answers `limit` keeps short."""
    names = sorted(field.alias or name for name, field in kind.model_fields.items())
    return st.builds(
        lambda start, fields, known: json.dumps({"model": "m", **start, **fields, **known}).encode(
            errors="surrogatepass"
        ),
        start,
        st.dictionaries(st.sampled_from(names), VALUES, max_size=3),
        st.fixed_dictionaries(
            {limit: st.sampled_from([0, 1, 2, -3])}, optional={"stream": st.booleans()}
        ),
    )


RESPONSE_BODIES = bodies_of(
    ResponsesRequest,
    st.fixed_dictionaries({"input": st.one_of(TEXTS, st.lists(ITEMS, max_size=4), VALUES)}),
    "max_output_tokens",
)
TURN_LISTS = st.lists(st.fixed_dictionaries({"role": ROLES, "content": CONTENTS}), max_size=4)
TURN_BODIES = bodies_of(
    MessagesRequest,
    st.fixed_dictionaries(
        {"messages": st.one_of(TURN_LISTS, VALUES)}, optional={"system": CONTENTS}
    ),
    "max_tokens",
)
VECTOR_BODIES = st.builds(
    lambda texts, fields: json.dumps({"model": "vectors", "input": texts, **fields}).encode(
        errors="surrogatepass"
    ),
    st.one_of(PROMPTS, VALUES),
    st.dictionaries(st.sampled_from(sorted(EmbeddingRequest.model_fields)), VALUES, max_size=1),
)
BUDGET_BODIES = st.builds(
    lambda size: json.dumps({"memory_budget": size}).encode(errors="surrogatepass"),
    st.one_of(VALUES, st.sampled_from(["auto", "50%", "1e400", "-5", "nan", "²MiB", "auto:1-2"])),
)
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "Origin",
            "Host",
            "Authorization",
            "Content-Type",
            "Content-Length",
            "Expect",
            "Transfer-Encoding",
            "Connection",
            "Upgrade",
            "X-Any",
        ]
    ),
    st.one_of(
        st.binary(max_size=20).filter(lambda value: not {10, 13} & set(value)),
        st.sampled_from([b"http://[bad", b"chunked", b"-1", b"100-continue", b"websocket"]),
        st.sampled_from([b"9" * 30, b"close", b"127.0.0.1", b"Upgrade"]),
    ),
    max_size=3,
)


def drop(body: dict) -> dict:
    """Without what only the other kind of request has."""
    return {name: value for name, value in body.items() if name != "messages"}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, int]]:
    """The address and the process of a server under a budget."""
    command = [sys.executable, "-m", "edgespec", "serve", "--port", "0"]
    flags = ["--memory-budget", BUDGET, "--chat-template", TEMPLATE]
    with subprocess.Popen([*command, *flags], stderr=subprocess.PIPE, text=True) as process:
        found = None
        for line in process.stderr:
            if found := re.search(r"(http://[^/ ]+)/v1", line):
                break
        assert found, "it ended without an address"
        # the log of requests fills a pipe that nobody reads, and the server would wait
        reading = threading.Thread(target=process.stderr.read)
        reading.start()
        try:
            yield found[1], process.pid
        finally:
            process.terminate()
            reading.join()
            assert process.wait(60) == 0


@pytest.fixture(scope="module")
def of_vectors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of two models, one of which embeds."""
    folder = tmp_path_factory.mktemp("models")
    tiny_llama().write(folder / "one.gguf")
    write_encoder(folder / "vectors.gguf")
    args = Namespace(memory_budget="400MiB", quiet=True, models_dir=str(folder))
    with serving_list(ModelList(args, Console(quiet=True), None, n_parallel="1")) as address:
        yield address


def raw(address: str, path: str, headers: dict[str, bytes], body: bytes) -> bytes:
    """The first line of what the server says to bytes that no client would write."""
    url = urlsplit(address)
    lines = {"Host": url.netloc.encode(), "Content-Length": b"%d" % len(body)} | headers
    head = b"".join(b"%s: %s\r\n" % (name.encode(), value) for name, value in lines.items())
    said = b""
    with (
        socket.create_connection((url.hostname, url.port), timeout=2) as one,
        contextlib.suppress(OSError),
    ):
        one.sendall(b"POST %s HTTP/1.1\r\n%s\r\n%s" % (path.encode(), head, body))
        one.shutdown(socket.SHUT_WR)
        said = one.recv(100)
    return said.partition(b"\r\n")[0]


@pytest.mark.parametrize("n_examples", [15, pytest.param(400, marks=pytest.mark.long)])
def test_bodies(server, n_examples):
    http = httpx.Client(base_url=server[0], timeout=60)

    @settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(path=st.sampled_from([CHAT, TEXT]), chat=BODIES, plain=PLAIN)
    def attack(path: str, chat: bytes, plain: bytes) -> None:
        answer = http.post(path, content=chat if path == CHAT else plain)
        assert answer.status_code in ANSWERS, answer.text

    with http:
        attack()
    assert_unharmed(*server)


@pytest.mark.parametrize("n_examples", [15, pytest.param(400, marks=pytest.mark.slow)])
def test_bodies_of_other_protocols(server, n_examples):
    http = httpx.Client(base_url=server[0], timeout=60)

    @settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        path=st.sampled_from([RESPONSES, TURNS, COUNT]), items=RESPONSE_BODIES, turns=TURN_BODIES
    )
    def attack(path: str, items: bytes, turns: bytes) -> None:
        answer = http.post(path, content=items if path == RESPONSES else turns)
        assert answer.status_code in ANSWERS, answer.text
        if path != RESPONSES and answer.status_code != 200:
            assert answer.json()["type"] == "error"

    with http:
        attack()
    assert_unharmed(*server)


OTHERS = {
    "/completion": "prompt logit_bias n_probs response_fields return_tokens stop seed",
    "/infill": "input_prefix input_suffix input_extra prompt",
    "/apply-template": "messages tools",
    "/tokenize": "content add_special with_pieces",
    "/detokenize": "tokens",
    "/api/chat": "model messages stream format think tools keep_alive",
    "/api/generate": "model prompt system suffix raw stream format think images",
    "/api/show": "model name",
}
"""Fields of routes of other servers."""
SHORT = {"n_predict": 1, "options": {"num_predict": 1}}
KNOWN = {"messages": [{"role": "user", "content": "a"}], "prompt": "a"}


@pytest.mark.parametrize("n_examples", [15, pytest.param(400, marks=pytest.mark.slow)])
def test_bodies_of_other_servers(server, n_examples):
    http = httpx.Client(base_url=server[0], timeout=60)

    @settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(path=st.sampled_from([*OTHERS]), data=st.data())
    def attack(path: str, data: st.DataObject) -> None:
        names = OTHERS[path].split()
        values = st.dictionaries(st.sampled_from(names), st.one_of(VALUES, MESSAGES), max_size=3)
        known = {name: value for name, value in KNOWN.items() if name in names}
        fields = known | data.draw(values) | SHORT
        answer = http.post(path, content=json.dumps(fields).encode(errors="surrogatepass"))
        assert answer.status_code in ANSWERS, answer.text

    with http:
        attack()
    assert_unharmed(*server)


@pytest.mark.slow
@pytest.mark.parametrize("n_examples", [15, pytest.param(200, marks=pytest.mark.slow)])
def test_bodies_about_vectors_and_budgets(of_vectors, n_examples):
    http = httpx.Client(base_url=of_vectors, timeout=60)

    @settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(path=st.sampled_from([VECTORS, SIZE]), vectors=VECTOR_BODIES, sizes=BUDGET_BODIES)
    def attack(path: str, vectors: bytes, sizes: bytes) -> None:
        answer = http.post(path, content=vectors if path == VECTORS else sizes)
        assert answer.status_code in ANSWERS, answer.text
        assert answer.json()

    with http:
        attack()
        assert http.post(VECTORS, json={"input": "hello world"}).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("n_examples", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_headers(server, n_examples):
    @settings(max_examples=n_examples, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        path=st.sampled_from([CHAT, TEXT, RESPONSES, TURNS, "/", "/v1/models/a"]),
        headers=HEADERS,
    )
    def attack(path: str, headers: dict[str, bytes]) -> None:
        said = raw(server[0], path, headers, b'{"prompt": [4096]}')
        assert not said or int(said.split()[1]) in ANSWERS | {100, 401}, said

    attack()
    assert_unharmed(*server)


def assert_unharmed(address: str, pid: int) -> None:
    answer = httpx.post(address + TEXT, json={"prompt": "def f(", "max_tokens": 3}, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 3
    assert cgroups.table(Path(f"/proc/{pid}/status"))["VmHWM"] <= parse_size(BUDGET)
