"""Protocols that a runtime implements: the one that the engine needs, and optional ones."""

from edgespec.ports.language_model import LanguageModel, PassPart, Progress, Vocabulary, check_token

__all__ = ["LanguageModel", "PassPart", "Progress", "Vocabulary", "check_token"]
