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
        "<｜DSML｜function_calls>": "</｜DSML｜function_calls>",
        "<｜DSML｜tool_calls>": "</｜DSML｜tool_calls>",
        "<tool_calls:opensource>": "</tool_calls:opensource>",
        "<tool_call:opensource>": "</tool_call:opensource>",
        "<|START_ACTION|>": "<|END_ACTION|>",
        "<|tools_prefix|>": "<|tools_suffix|>",
        "<|tool_calls_section_begin|>": "<|tool_calls_section_end|>",
        "<|tool_call_start|>": "<|tool_call_end|>",
        "<｜tool▁calls▁begin｜>": "<｜tool▁calls▁end｜>",
        "<|tool_calls|>": "<|calls|>",
        "<|tool_call>": "<tool_call|>",
        "<|python_start|>": "<|python_end|>",
        "<function_calls>": "</function_calls>",
    }
)
"""Mark that ends a block of calls, by the mark that begins it."""
OPENERS = ("[TOOL_CALLS]", "<|tool_call|>", "<|python_tag|>")
"""Marks in front of calls that no mark ends: Mistral's, Granite's, Llama's."""
_NATIVE = (
    "[CALL_ID] [ARGS] <|tool_call_begin|> <|tool_call_argument_begin|> "
    "<｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜> <|tool_call:begin|> "
    '<|tool_call:name|> <|tool_call:args|> <|tool_call:end|> ｜DSML｜ <|"|> '
    "<tool_sep:opensource> <arg_key:opensource> </arg_key:opensource> <arg_value:opensource> "
    "</arg_value:opensource> <|channel|> <|constrain|> <|message|> <|call|>"
)
"""Marks inside calls of one family."""
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
MARKS = (*BLOCKS, *BLOCKS.values(), *OPENERS, *_NATIVE.split(), KEY, KEY_END, VALUE, VALUE_END)
"""Marks that some vocabularies have as control tokens, which must be visible to find calls."""
