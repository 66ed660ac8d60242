"""`/tokenize` and `/detokenize`, in the shapes of llama.cpp's server."""

import pytest
from starlette.testclient import TestClient

from edgespec.completions.tokenizing import detokenize, tokenize
from edgespec.errors import UsageError
from edgespec.server.guarding import Guard
from server_running import server_over

TEXT = "def gcd(a, b):\n    return ä 🙂"


@pytest.fixture(scope="module")
def tokenizer(session):
    return session.tokenizer


@pytest.fixture(scope="module")
def client(session):
    app = server_over(session, Guard("127.0.0.1", api_key="secret"))._http.config.app
    return TestClient(app, base_url="http://127.0.0.1", headers={"X-Api-Key": "secret"})


def test_a_text_and_back(client, session):
    tokens = client.post("/tokenize", json={"content": TEXT}).json()
    assert set(tokens) == {"tokens"}
    assert tokens["tokens"] == session.encode(TEXT)
    assert client.post("/detokenize", json=tokens).json() == {"content": TEXT}


@pytest.mark.parametrize("path", ["/v1/tokenize", "/tokenize/"])
def test_other_paths_answer_too(client, path):
    assert client.post(path, json={"content": "a"}).status_code == 200


def test_pieces_make_the_text(tokenizer):
    found = tokenize(tokenizer, {"content": TEXT, "with_pieces": True})["tokens"]
    assert [one["id"] for one in found] == tokenize(tokenizer, {"content": TEXT})["tokens"]
    pieces = [one["piece"] for one in found]
    parts = [bytes(one) if isinstance(one, list) else one.encode() for one in pieces]
    assert b"".join(parts).decode() == TEXT
    assert any(isinstance(piece, list) for piece in pieces)  # bytes of a character in parts


def test_control_tokens_are_tokens_or_text(tokenizer, session):
    control = min(session._models.target.vocabulary.chat_format.control_tokens)
    as_token = tokenize(tokenizer, {"content": control})["tokens"]
    as_text = tokenize(tokenizer, {"content": control, "parse_special": False})["tokens"]
    assert len(as_token) == 1 < len(as_text)
    for tokens in (as_token, as_text):
        assert detokenize(tokenizer, {"tokens": tokens}) == {"content": control}


def test_texts_and_tokens_may_alternate(tokenizer):
    first = tokenize(tokenizer, {"content": "def"})["tokens"]
    assert tokenize(tokenizer, {"content": [*first, " f"]})["tokens"][: len(first)] == first


@pytest.mark.parametrize(
    "content",
    [
        *([], "a", None, {"content": 1}, {"content": [1.5]}),
        *({"content": [99_999]}, {"content": [True]}, {"content": "a", "with_pieces": "perhaps"}),
        {"content": "a", "with_pieces": 0},
    ],
)
def test_what_is_no_text_is_refused(tokenizer, content):
    with pytest.raises(UsageError):
        tokenize(tokenizer, content)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"content": "\\ud800", "tokens": 1}'])
def test_rubbish_is_the_clients_fault(client, path, body):
    assert client.post(path, content=body).status_code == 400
