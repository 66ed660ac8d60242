"""The Jinja environment in which a model's chat template runs: Hugging Face's helpers, metered.

A template may come from a hostile model: it reaches no file and no Python object besides its
arguments (jinja2's immutable sandbox), and a `Meter` limits the cost of each rendering.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgespec.chat.metering import Meter

_NESTED = (list, tuple, dict)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment of `transformers` for chat templates, with a meter. Not thread-safe."""

    intercepted_binops = frozenset("+*%") | {"**"}

    def __init__(self, meter: Meter) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, loopcontrols]
        )
        self.meter = meter
        self.code_generator_class = _MeteredCode
        self.finalize = self.compared  # jinja2 calls it with every value that is written out
        self.concat = self.join  # type: ignore[method-assign] # jinja2 reads it off the instance
        self.filters = {name: self._metered(name, call) for name, call in self.filters.items()}
        self.filters["tojson"] = self._metered("tojson", tojson)
        tests: Any = self.tests
        self.tests = {name: self._tested(call) for name, call in tests.items()}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = lambda format: datetime.now().strftime(format)  # noqa: A006

    def join(self, pieces: Iterable[Any]) -> str:
        """Join the pieces, and count them."""
        texts = []
        for piece in pieces:
            self.meter.shown(piece)
            texts.append(str(piece))
        self.meter.write(sum(map(len, texts)))
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        match operator:
            case "+":
                self.meter.joined(left, right)
            case "*":
                self.meter.repeated(left, right)
            case "**":
                self.meter.argument(left)
                self.meter.repeated(right, 1000)  # at most 1000 ** 1000
            case "%":
                self.meter.formatted(left)
                self.meter.shown(right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        safe = super().wrap_str_format(value)
        if safe is None:
            return None
        pattern, fill = value.__self__, safe

        def metered(*args: Any, **kwargs: Any) -> str:
            self.meter.called("format", pattern, [*args, *kwargs.values()])
            return fill(*args, **kwargs)

        return metered

    def call(self, context: Context, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        name, subject = getattr(call, "__name__", ""), getattr(call, "__self__", None)
        self.meter.called(name, subject, [*args, *kwargs.values()])
        return super().call(context, call, *args, **kwargs)

    def compared(self, value: Any) -> Any:
        """Check a value that is about to be compared, hashed or written, and return it."""
        self.meter.shown(value)
        return value

    def getitem(self, obj: Any, argument: Any) -> Any:
        return super().getitem(obj, self.compared(argument))

    def _tested(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The test `call` with its values checked before it runs."""

        @functools.wraps(call)
        def tested(*args: Any, **kwargs: Any) -> Any:
            if len(args) > 1:
                for value in args:
                    if isinstance(value, _NESTED):  # some tests also take the environment
                        self.meter.shown(value)
            return call(*args, **kwargs)

        return tested

    def _metered(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The filter `call` with its arguments and its result counted."""

        @functools.wraps(call)  # keeps jinja2's attributes
        def metered(*args: Any, **kwargs: Any) -> Any:
            subject, *others = args[1:] if hasattr(call, "jinja_pass_arg") else args
            self.meter.called(name, subject, [*others, *kwargs.values()])
            result = call(*args, **kwargs)
            if isinstance(result, str | list):
                self.meter.write(len(result))
            return result

        return metered


def raise_exception(message: str) -> None:
    """Raise TemplateError; templates call it for conversations that their model does not
    support."""
    raise TemplateError(message)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as in `transformers`; jinja2's own filter escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=min(indent, 64) if indent is not None else None,
        separators=separators,
        sort_keys=sort_keys,
    )


class _MeteredCode(CodeGenerator):
    """Generates code that counts every block it enters and every text it joins."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("environment.meter.step()")
        super().blockvisit(nodes, frame)

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:  # noqa: N802 - likewise
        self.write(f" {operators[node.op]} environment.compared(")
        self.visit(node.expr, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802 - likewise
        self.write("{")
        for item in node.items:
            self.write("environment.compared(")
            self.visit(item.key, frame)
            self.write("): ")
            self.visit(item.value, frame)
            self.write(", ")
        self.write("}")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - jinja2's name
        self.write("environment.join((")
        for operand in node.nodes:
            self.visit(operand, frame)
            self.write(", ")
        self.write("))")


class _GenerationBlocks(Extension):
    """Keeps the text of `{% generation %}` blocks, which mark the assistant's training text."""

    tags = {"generation"}  # noqa: RUF012 - a set is what jinja2 declares

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
