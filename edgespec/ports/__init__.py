"""Port of runtimes: a model, its vocabulary, and what it says about itself."""

from edgespec.ports.language_model import (
    AdjustsWeights,
    LanguageModel,
    PassPart,
    Progress,
    StateOrigin,
    Take,
    Vocabulary,
    check_token,
    token_ids_of,
)

__all__ = [
    "AdjustsWeights",
    "LanguageModel",
    "PassPart",
    "Progress",
    "StateOrigin",
    "Take",
    "Vocabulary",
    "check_token",
    "token_ids_of",
]
