"""The Jinja environment in which a model's chat template runs: Hugging Face's helpers, limited.

A template may come from a hostile model: it reaches no file and no Python object besides its
arguments (jinja2's immutable sandbox), and `RenderingLimits` bounds the cost of each rendering.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from edgespec.chat.render_limits import OwnList, RenderingLimits, TemplateLimitError

_REFUSED_FILTERS = (
    *("batch", "center", "filesizeformat", "forceescape", "pprint", "random", "round"),
    *("slice", "striptags", "sum", "urlize", "wordwrap", "xmlattr"),
)
"""Filters that no template of a model needs, which grow or are slow in ways of their own."""
_REFUSED_METHODS = {
    *("center", "encode", "expandtabs", "format_map", "ljust", "maketrans", "rjust", "to_bytes"),
    *("translate", "zfill"),
}


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """The environment of `transformers` for chat templates, with limits. Not thread-safe."""

    intercepted_binops = frozenset({"+", "*", "%", "//", "**"})

    def __init__(self, limits: RenderingLimits) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlocks, loopcontrols],
            optimized=False,  # constants would be written past `_LimitedCode`
        )
        self.limits = limits
        self.code_generator_class = _LimitedCode
        self.finalize = self._written  # jinja2 calls it with every value that is written out
        self.concat = self.join  # type: ignore[method-assign] # jinja2 reads it off the instance
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        self.filters["tojson"] = self.tojson
        self.filters = {name: self._limited(name, call) for name, call in self.filters.items()}
        tests: Any = self.tests
        self.tests = {name: self._limited(name, call) for name, call in tests.items()}
        del self.globals["lipsum"]
        self.globals |= {
            "namespace": _OpaqueNamespace,
            "raise_exception": raise_exception,
            "strftime_now": strftime_now,
        }

    def made(self, value: Any) -> Any:
        """The value of an expression, counted."""
        return self.limits.made(OwnList(value) if type(value) is list else value)

    def join(self, pieces: Iterable[Any]) -> str:
        """Join the pieces, and count them."""
        texts = []
        for piece in pieces:
            texts.append(self._written(piece))
            self.limits.write(len(texts[-1]))
        return "".join(texts)

    def tojson(
        self, value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any
    ) -> str:
        """Plain JSON, as in `transformers`; jinja2's own filter escapes for HTML. Half a surrogate
        pair, which a model may have written in a call, stays an escape."""
        indent = None if indent is None else min(indent, 64)
        encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, **options)
        text = self.join(encoder.iterencode(value))
        return text.encode(errors="backslashreplace").decode()

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, OwnList) and attr in ("append", "pop"):
            return True
        return attr not in _REFUSED_METHODS and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise TemplateLimitError("it raises to a power, which no conversation needs")
        compute = functools.partial(super().call_binop, context, operator, left, right)
        return self._counted(operator, (left, right), compute)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        safe = super().wrap_str_format(value)
        return None if safe is None else self._limited("format", safe, value.__self__)

    def call(self, context: Context, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        compute = functools.partial(super().call, context, call, *args, **kwargs)
        if isinstance(call, Macro) and (call.catch_varargs or call.catch_kwargs):
            self.limits.made((*args, kwargs))  # it can nest what it is given
        name, subject = getattr(call, "__name__", ""), getattr(call, "__self__", None)
        if isinstance(subject, OwnList) and name == "append":
            self.limits.appending(subject, args)
        return self._counted(name, (subject, *args, *kwargs.values()), compute)

    def _limited(self, name: str, call: Callable[..., Any], *subject: Any) -> Callable[..., Any]:
        """The filter or test `call`, or the method of a `subject`, with its result counted."""
        n_passed = int(hasattr(call, "jinja_pass_arg"))

        @functools.wraps(call)  # keeps jinja2's attributes
        def limited(*args: Any, **kwargs: Any) -> Any:
            operands = (*subject, *args[n_passed:], *kwargs.values())
            return self._counted(name, operands, functools.partial(call, *args, **kwargs))

        return limited

    def _counted(self, name: str, operands: Sequence[Any], compute: Callable[[], Any]) -> Any:
        """The result of an operation; a list instead of an iterator, which cannot be measured."""
        self.limits.growing(name, operands)
        result = compute()
        return self.limits.made(list(result) if isinstance(result, Iterator) else result)

    def _written(self, value: Any) -> Any:
        return value if isinstance(value, str) else self.limits.made(str(value))


class _OpaqueNamespace(Namespace):
    """jinja2's namespace, which is the only value that can contain itself."""

    def __repr__(self) -> str:
        raise TemplateLimitError("it writes a namespace, which may have no end")


def raise_exception(message: str) -> None:
    """Raise TemplateError; templates call it for conversations that their model does not
    support."""
    raise TemplateError(message)


def strftime_now(format: str) -> str:  # noqa: A002 - the name in `transformers`
    """The local date or time."""
    return datetime.now().strftime(format)


class _LimitedCode(CodeGenerator):
    """Generates code that measures new values, and checks the time in every block."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        self.writeline("environment.limits.check_time()")
        super().blockvisit(nodes, frame)

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> None:
        is_part = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        kinds = nodes.List | nodes.Tuple | nodes.Dict | nodes.Compare | nodes.Concat
        is_made = is_part or isinstance(node, kinds)
        is_made = is_made and getattr(node, "ctx", "load") == "load"
        self.write("environment.made(" * is_made)
        super().visit(node, *args, **kwargs)
        self.write(")" * is_made)


class _GenerationBlocks(Extension):
    """Keeps the text of `{% generation %}` blocks, which mark the assistant's training text."""

    tags = {"generation"}  # noqa: RUF012 - a set is what jinja2 declares

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)
