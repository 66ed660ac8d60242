"""Settings that a request leaves open are those of the service."""

from types import SimpleNamespace

from edgespec.chat.prompts import ChatPrompt
from edgespec.completions.requests import ChatRequest, CompletionRequest
from edgespec.completions.service import Completions

HELLO = [{"role": "user", "content": "Hello"}]


class Listener:
    """A session that remembers how it was to sample."""

    target = SimpleNamespace(name="fake")

    def chat_prompt(self, messages, tools=None, template=None) -> ChatPrompt:
        return ChatPrompt("", (1,), None, "")

    def encode(self, text: str) -> list[int]:
        return [1]

    def piece(self, token: int) -> bytes:
        return b"a"

    def submit(self, request):
        self.sampling = request.sampling
        return SimpleNamespace()


def test_chats_and_texts_alike():
    session = Listener()
    service = Completions(session, sampling={"temperature": 0.6, "top_k": 20})
    for start in (
        lambda: service.chat(ChatRequest(messages=HELLO, top_k=5)),
        lambda: service.text(CompletionRequest(prompt="Hello", top_k=5)),
    ):
        start()
        assert (session.sampling.temperature, session.sampling.top_k) == (0.6, 5)


def test_without_being_told_it_is_greedy():
    session = Listener()
    Completions(session).chat(ChatRequest(messages=HELLO))
    assert session.sampling.temperature == 0
