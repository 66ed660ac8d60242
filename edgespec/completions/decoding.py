"""Decodes the JSON of requests, whose strings must be valid Unicode."""

from __future__ import annotations

import codecs
from typing import Any

from pydantic_core import from_json

from edgespec.completions.refusals import Refusal


def decoded(data: bytes | bytearray, named: str = "the body") -> Any:
    """The JSON value in `data`. Raises Refusal, which calls it `named`, if it is invalid."""
    try:
        return from_json(data.removeprefix(codecs.BOM_UTF8), allow_inf_nan=False)
    except ValueError as error:
        raise Refusal(400, f"{named} is not JSON: {error}") from error
