"""Lets a mixture begin with what earlier runs knew of its experts, and keeps what it learns."""

from __future__ import annotations

from collections.abc import Callable

from edgespec.engine.drafting.remembering import pair_digest
from edgespec.files import cache_folder
from edgespec.files.expert_shares import ExpertSharesFile
from edgespec.ports import LanguageModel
from edgespec.ports.experts import KnowsExperts


def begin_warm(target: LanguageModel, close: Callable[[], None]) -> Callable[[], None]:
    """Give a mixture what is kept of it. The result keeps what was learnt, then calls `close`."""
    if not isinstance(target, KnowsExperts):
        return close
    file = ExpertSharesFile(cache_folder.experts(), pair_digest(target.info, None))
    target.expect_experts(file.recall())

    def keep_and_close() -> None:
        try:
            if shares := target.expert_shares:
                file.keep(shares)
        finally:
            close()

    return keep_and_close
