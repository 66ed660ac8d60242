"""Marks around the tool calls that models write. Knows no template."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BEGIN, END = "<tool_call>", "</tool_call>"
BLOCKS: Mapping[str, str] = MappingProxyType(
    {
        BEGIN: END,
        "<tool_calls>": "</tool_calls>",
        "<TOOLCALL>": "</TOOLCALL>",
        "<tools>": "</tools>",
        "<function_call>": "</function_call>",
        "<minimax:tool_call>": "</minimax:tool_call>",
        "<seed:tool_call>": "</seed:tool_call>",
    }
)
"""Mark that ends a block of calls, by the mark that begins it."""
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
MARKS = (*BLOCKS, *BLOCKS.values(), KEY, KEY_END, VALUE, VALUE_END)
"""Marks that some vocabularies have as control tokens, which must be visible to find calls."""
