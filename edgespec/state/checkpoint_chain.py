"""The stored checkpoints of one text in a model with recurrent state.

Such a text goes on only where all of its state was kept: at the ends of earlier prompts. A
checkpoint is stored in pieces; the one that ends it is written last and deleted first, and its name
tells the number of tokens, so that the longest one that a text begins with is found by a list of
names. What attention layers hold besides is in blocks, which texts share; they tell where texts
diverge, so that a checkpoint is made there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from edgespec.errors import EdgespecError, StateError
from edgespec.ports import LanguageModel
from edgespec.state.blocks import BlockFolder
from edgespec.state.chains import MIN_TOKENS, BlockChain, next_name

END = "-state"
"""End of the name of the piece that ends a checkpoint."""


class CheckpointChain(BlockChain):
    """The checkpoints of one slot's text in one model, and which of them are stored."""

    def __init__(self, folder: BlockFolder, model: LanguageModel, root: str, slot: int) -> None:
        super().__init__(folder, model, root, slot)
        self._has_blocks = model.info.block_tokens > 0
        self._kept: set[int] = set()
        """Ends of the checkpoints that are known to be stored."""

    def n_available(self, text: Sequence[int]) -> int:
        names = self.names(text)
        stored = (name.removesuffix(END).rsplit("-", 1) for name in self._folder.names(END))
        ends = {int(parts[1]) for parts in stored if len(parts) == 2 and parts[1].isdecimal()}
        n_known = super().n_available(text)
        found = 0
        for end in sorted((end for end in ends if end <= len(text)), reverse=True):
            is_whole = not self._has_blocks or end - end % self.block_tokens <= n_known
            if is_whole and self._folder.has(self._name(names, text, end) + END):
                found = end
                break
        if n_known >= max(MIN_TOKENS, found + self.block_tokens):
            self._model.expect_end(n_known, self._slot)
        return found

    def load(self, text: Sequence[int], n_held: int, check: Callable[[], None]) -> int:
        """Replace the slot's text by `text`, whose checkpoint is at its end; returns its length, or
        0 if files are damaged: then the slot is empty."""
        n, end = self.block_tokens, len(text)
        name = self._name(self.names(text), text, end)
        self.empty()
        n_in_blocks = end - end % n
        used: list[str] = []
        try:
            if self._has_blocks and super().load(text, 0, check) < n_in_blocks:
                return self._fail(name)
            self._model.read_checkpoint(end, self._pieces(name, used, check), self._slot)
        except StateError:
            return self._fail(name)
        except BaseException:  # blocks without the recurrent state are no text
            self.empty()
            raise
        self._kept = {end}
        self._folder.touch([*self._names, *used[1:], *used[:1]])
        return end

    def _fail(self, name: str) -> int:
        self._folder.delete(name + END)
        return self.empty()

    def _pieces(
        self, name: str, used: list[str], check: Callable[[], None]
    ) -> Iterator[memoryview]:
        """The pieces of a checkpoint, the one that ends it first; `used` gets their names."""
        file = name + END
        while True:
            check()
            piece = self._folder.read(file)
            used.append(file)
            yield piece
            file = f"{name}-{len(used)}"

    def keep(self, text: Sequence[int], n_tokens: int) -> bool:
        if not self._folder.is_writing:
            return False
        for end in self._model.checkpoints(self._slot):
            if MIN_TOKENS <= end <= n_tokens and end not in self._kept:
                if not (self._has_blocks and super().keep(text, end)):
                    self._keep_checkpoint(text[:end], end)
                return True
        return False

    def _keep_checkpoint(self, text: Sequence[int], end: int) -> None:
        name = self._name(self.names(text), text, end)
        self._kept.add(end)
        if self._folder.has(name + END):
            return
        try:
            *pieces, last = self._model.write_checkpoint(end, self._slot)
            for number, piece in enumerate(pieces, 1):
                self._folder.write(f"{name}-{number}", piece)
            self._folder.write(name + END, last)
        except EdgespecError as error:
            self._folder.stop(str(error))

    def rewind(self, n_tokens: int) -> None:
        super().rewind(n_tokens)
        self._kept = {end for end in self._kept if end <= n_tokens}

    def _name(self, names: Sequence[str], text: Sequence[int], end: int) -> str:
        """Name of the checkpoint at `end`, given the names of the text's blocks."""
        n_blocks = end // self.block_tokens
        before = names[n_blocks - 1] if n_blocks else self._first_name
        rest = text[n_blocks * self.block_tokens : end]
        return f"{next_name(before, rest) if rest else before}-{end}"
