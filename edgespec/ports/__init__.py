"""What a runtime offers: the one port of the engine here, and what it may offer besides it."""

from edgespec.ports.language_model import LanguageModel, Progress, Vocabulary, check_token

__all__ = ["LanguageModel", "Progress", "Vocabulary", "check_token"]
