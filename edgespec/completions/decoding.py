"""Decodes the JSON of requests and requires valid Unicode in its strings."""

from __future__ import annotations

import json
import re
from typing import Any

from edgespec.completions.calls import no_number
from edgespec.completions.refusals import Refusal

_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def decoded(data: bytes | bytearray, named: str = "the body") -> Any:
    """The JSON value in `data`. Raises Refusal, which calls it `named`, if it is invalid."""
    try:
        content = json.loads(data.decode("utf-8-sig"), parse_constant=no_number)
        if _ESCAPED_SURROGATE.search(data):
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise Refusal(400, f"{named} is not UTF-8 at byte {error.start}") from error
    except UnicodeEncodeError as error:
        raise Refusal(
            400,
            f"{named} has half a character (a lone surrogate, an escape such as \\ud800 without "
            "its other half), which is not text",
        ) from error
    except RecursionError as error:
        raise Refusal(400, f"{named} is nested too deep") from error
    except ValueError as error:
        raise Refusal(400, f"{named} is not JSON: {error}") from error
    return content
