"""The engine of loaded models, which goes on with what earlier runs have learnt.

What it learns itself is kept: costs and confidences, and a mixture's use of its experts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgespec.engine.engine import Engine
from edgespec.engine.settings import EngineSettings
from edgespec.engine.state_store import StateStore
from edgespec.files import cache_folder
from edgespec.files.json_file import JsonFile, pair_digest
from edgespec.grammar.specification import GRAMMARS_AT_ONCE
from edgespec.ports import LanguageModel
from edgespec.session.opening import LoadedModels
from edgespec.state.prefix_cache import SlotPrefixes
from edgespec.tracing.spans import Trace

MAX_FILES = 32
SHARES = "shares"
"""Key of the share of tokens that chose each expert: one hexadecimal byte per expert, by layer."""


def warm_engine(
    models: LoadedModels,
    settings: EngineSettings,
    trace: Trace,
    prefixes: Callable[[int], SlotPrefixes] | None,
) -> Engine:
    """The engine of a session, which closes the models at its end; `prefixes` are `Engine`'s."""
    target, draft, settings = models.target, models.draft, models.settled(settings)
    store, release = None, models.close
    if settings.remember:
        draft_info = draft.info if draft else None
        store = StateStore(cache_folder.calibrations(), target.info, draft_info)
        release = warm_start(target, models.close)
    return Engine(
        target,
        draft,
        settings,
        trace=trace,
        state_store=store,
        release=release,
        n_grammars=GRAMMARS_AT_ONCE,
        name="the session",
        prefixes=prefixes,
    )


def warm_start(target: LanguageModel, close: Callable[[], None]) -> Callable[[], None]:
    """Give a mixture its saved statistics; returns a function that saves them and calls `close`."""
    file = JsonFile(cache_folder.experts(), pair_digest(target.info), MAX_FILES)
    target.expect_experts(_shares(file.read()))

    def keep_and_close() -> None:
        try:
            if shares := target.expert_shares():
                file.write({SHARES: [layer.hex() for layer in shares]})
        finally:
            close()

    return keep_and_close


def _shares(content: Any) -> list[bytes]:
    """The shares in a file's content; empty if it is missing or of another form."""
    try:
        return [bytes.fromhex(layer) for layer in content[SHARES]]
    except (ValueError, TypeError, KeyError):
        return []
