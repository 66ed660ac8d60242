"""The calls of a session in OpenAI's words, and in llama-cpp-python's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from edgespec.chat.messages import Message

if TYPE_CHECKING:
    from edgespec.completions.requests import Prompts
    from edgespec.completions.running_request import ChatCompletion, TextCompletion
    from edgespec.completions.service import Completions


class OpenAICalls(ABC):
    """Mixin of a session: its texts as answers in OpenAI's format."""

    @abstractmethod
    def _completions(self) -> Completions:
        """A service of this session's texts."""

    @overload
    def create_chat_completion(
        self, messages: Sequence[Message], stream: Literal[False] = False, **fields: Any
    ) -> dict[str, Any]: ...

    @overload
    def create_chat_completion(
        self, messages: Sequence[Message], stream: Literal[True], **fields: Any
    ) -> ChatCompletion: ...

    def create_chat_completion(
        self, messages: Sequence[Message], stream: bool = False, **fields: Any
    ) -> dict[str, Any] | ChatCompletion:
        """OpenAI's `chat.completions.create`, and llama-cpp-python's method of this name.

        Returns a dictionary in OpenAI's format; with `stream` an iterator of chunks, which can be
        cancelled and closed. `fields` are those of the request: temperature, max_tokens, tools, ...
        Raises UsageError for invalid fields, and SessionClosed if the session is closed meanwhile.
        """
        from edgespec.completions.requests import ChatRequest

        request = ChatRequest.parse({"messages": list(messages), "stream": stream} | fields)
        completion = self._completions().chat(request)
        return completion if stream else completion.whole()

    @overload
    def create_completion(
        self, prompt: Prompts, stream: Literal[False] = False, **fields: Any
    ) -> dict[str, Any]: ...

    @overload
    def create_completion(
        self, prompt: Prompts, stream: Literal[True], **fields: Any
    ) -> TextCompletion: ...

    def create_completion(
        self, prompt: Prompts, stream: bool = False, **fields: Any
    ) -> dict[str, Any] | TextCompletion:
        """OpenAI's `completions.create`: continues texts; otherwise as `create_chat_completion`.

        Several prompts, and `n` completions of each, are choices of one answer: completion j of
        prompt i has the index `i * n + j` and the seed `seed + j`.
        """
        from edgespec.completions.requests import CompletionRequest

        text = prompt if isinstance(prompt, str) else list(prompt)
        request = CompletionRequest.parse({"prompt": text, "stream": stream} | fields)
        completion = self._completions().text(request)
        return completion if stream else completion.whole()
