"""Runs language models that do not fit in memory: weights paged in under a budget, and drafted.

    with edgespec.load(settings) as session: ...

The names below are imported when they are first used, so that importing edgespec costs nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes as long as the rest of a command's first steps
if TYPE_CHECKING:
    from typing import Any

    from edgespec.engine.generation import Generation as Generation
    from edgespec.engine.settings import EngineSettings as EngineSettings
    from edgespec.errors import BudgetError as BudgetError
    from edgespec.errors import Cancelled as Cancelled
    from edgespec.errors import ContextOverflow as ContextOverflow
    from edgespec.errors import EdgespecError as EdgespecError
    from edgespec.errors import FetchError as FetchError
    from edgespec.errors import GrammarError as GrammarError
    from edgespec.errors import ModelError as ModelError
    from edgespec.errors import PairError as PairError
    from edgespec.errors import SessionClosed as SessionClosed
    from edgespec.errors import StateError as StateError
    from edgespec.errors import TargetLost as TargetLost
    from edgespec.errors import UsageError as UsageError
    from edgespec.errors import WeightReadError as WeightReadError
    from edgespec.grammar.specification import Grammar as Grammar
    from edgespec.grammar.specification import json_schema as json_schema
    from edgespec.grammar.specification import lark_grammar as lark_grammar
    from edgespec.grammar.specification import regular_expression as regular_expression
    from edgespec.rules.sampling import SamplingParams as SamplingParams
    from edgespec.session.asynchronous import AsyncSession as AsyncSession
    from edgespec.session.embedder import Embedder as Embedder
    from edgespec.session.embedder import load_embedder as load_embedder
    from edgespec.session.session import Session as Session
    from edgespec.session.session import load as load
    from edgespec.session.session import plan as plan
    from edgespec.settings.config import LoadSettings as LoadSettings
    from edgespec.tracing.trace_file import open_trace as open_trace
    from edgespec.values import GenerationResult as GenerationResult
    from edgespec.values import TokenEvent as TokenEvent

_NAMES = {
    "engine.generation": ("Generation",),
    "rules.sampling": ("SamplingParams",),
    "engine.settings": ("EngineSettings",),
    "errors": (
        *("BudgetError", "Cancelled", "ContextOverflow", "EdgespecError", "FetchError"),
        *("GrammarError", "ModelError", "PairError", "SessionClosed", "StateError"),
        *("TargetLost", "UsageError", "WeightReadError"),
    ),
    "grammar.specification": ("Grammar", "json_schema", "lark_grammar", "regular_expression"),
    "session.asynchronous": ("AsyncSession",),
    "session.embedder": ("Embedder", "load_embedder"),
    "session.session": ("Session", "load", "plan"),
    "settings.config": ("LoadSettings",),
    "tracing.trace_file": ("open_trace",),
    "values": ("GenerationResult", "TokenEvent"),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_HOME)


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'edgespec' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"edgespec.{_HOME[name]}"), name)
