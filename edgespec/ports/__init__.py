"""Port of runtimes: a model, its vocabulary, and what it says about itself."""

from edgespec.ports.language_model import EmbeddingModel as EmbeddingModel
from edgespec.ports.language_model import LanguageModel as LanguageModel
from edgespec.ports.language_model import PassPart as PassPart
from edgespec.ports.language_model import Progress as Progress
from edgespec.ports.language_model import StateOrigin as StateOrigin
from edgespec.ports.language_model import Take as Take
from edgespec.ports.language_model import Vocabulary as Vocabulary
from edgespec.ports.language_model import unknown_token as unknown_token
