"""The models of a server or a batch, and which of them a request names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgespec.completions.refusals import Refusal
from edgespec.files.gguf_names import SUFFIX


@dataclass(slots=True, eq=False)
class HostedModel:
    """A model that requests name, loaded or not."""

    name: str
    embeds: bool = False
    """True for a model that turns texts into vectors and writes none."""
    stays: bool = False
    """True if it stays once it is loaded, in room of its own; others take turns in the rest."""
    size_bytes: int = 0
    """Size of its weights."""
    smallest_bytes: int = 0
    """The smallest budget that it can be loaded with; 0 if unknown."""
    error: str | None = None
    """Reason why it could not be planned, or not loaded the last time."""
    is_unusable: bool = False
    """True if no model has to leave to know that it cannot be loaded."""
    served: Any = None
    """The loaded model as its requests use it; None while it is not in memory."""
    n_users: int = 0
    """Number of requests that keep it in memory."""


def model_named(
    models: Sequence[HostedModel], name: str | None, embeds: bool | None = None
) -> HostedModel:
    """The model that a request names; the only one answers to every name.

    A request without a name means the only one of its kind. `embeds` says which kind is asked for.
    Raises Refusal for a name that is missing or unknown, and for one of the other kind.
    """
    # requests may leave the ending out
    names = (name, f"{name}{SUFFIX}", str(name).removesuffix(SUFFIX))
    found = next((model for one in names for model in models if model.name == one), None)
    right = [model for model in models if embeds is None or model.embeds == embeds]
    if len(models) == 1 or (name is None and len(right) == 1):
        found = models[0] if len(models) == 1 else right[0]
    elif name is None:  # a text must not depend on which model happens to be loaded
        known = ", ".join(model.name for model in right or models)
        message = f"the request names no model: give model, one of {known}"
        raise Refusal(400, message, code="missing_required_parameter", param="model")
    if found is None:
        known = ", ".join(model.name for model in models)
        raise Refusal(
            404, f"there is no model {name!r}, only {known}", code="model_not_found", param="model"
        )
    if embeds is not None and found.embeds != embeds:
        does = (
            "turns texts into vectors: ask /v1/embeddings, or name a model that writes"
            if found.embeds
            else "writes texts: name an embedding model"
        )
        raise Refusal(400, f"{found.name} {does}", code="wrong_kind_of_model", param="model")
    return found


def not_loaded(name: str, reason: str) -> Refusal:
    """The refusal of a request whose model cannot be loaded."""
    return Refusal(500, f"{name} cannot be loaded: {reason}", code="model_not_loaded")
