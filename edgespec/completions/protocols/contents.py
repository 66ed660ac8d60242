"""Reads parts of requests: text, calls, and calls of tools that only other servers have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from edgespec.completions.protocols.request_parts import RequestError

_UNTOLD = ("type", "id", "call_id", "tool_use_id", "status")
"""Fields of items that are not told to the model."""


@contextmanager
def reading(where: str, param: str) -> Iterator[None]:
    """Context manager that names the place of what is not as a protocol has it. Raises
    RequestError."""
    try:
        yield
    except RequestError:
        raise
    except KeyError as error:
        raise RequestError(f"{where}.{error.args[0]} is missing", param) from error
    except ValueError as error:
        raise RequestError(f"{where}: {error}", param) from error
    except (TypeError, AttributeError) as error:
        raise RequestError(f"{where} has a value of a wrong type", param) from error


def told(item: Mapping[str, Any]) -> str:
    """The text for a call of a tool that only other servers have, or for what it returned."""
    fields = {name: v for name, v in item.items() if name not in _UNTOLD and v is not None}
    plain = json.loads(json.dumps(fields), object_hook=_decrypted)
    return f"[{item['type']}] {json.dumps(plain, ensure_ascii=False)}"


def _decrypted(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "encrypted_content"}


def string(value: Any) -> str:
    """The value, which must be text. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} must be text")
    return value


def call_of(identity: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """A call in OpenAI's format. Raises ValueError."""
    function = {"name": string(name), "arguments": string(arguments)}
    return {"id": string(identity), "type": "function", "function": function}
