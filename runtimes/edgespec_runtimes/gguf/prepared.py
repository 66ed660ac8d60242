"""Prepares and loads GGUF models: measures their needs, then loads them according to a plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from edgespec.concurrency.owning import close_all
from edgespec.errors import setting
from edgespec.memory import heap
from edgespec.memory.budget import MemoryPlan
from edgespec.paging.reader import WatchedFiles
from edgespec.ports import LanguageModel, Progress, StateOrigin
from edgespec.registry import without_padding
from edgespec_runtimes.gguf.context import contexts
from edgespec_runtimes.gguf.context.prompt_buffers import PromptBuffers
from edgespec_runtimes.gguf.file.header import GgufFile
from edgespec_runtimes.gguf.file.heads import has_layers, obstacle
from edgespec_runtimes.gguf.kernels.invariant_kernels import can_replace_products
from edgespec_runtimes.gguf.llama import loading
from edgespec_runtimes.gguf.llama.vocabulary import GgufVocabulary, NoTexts
from edgespec_runtimes.gguf.measuring import MeasuredGguf
from edgespec_runtimes.gguf.model import GgufModel, Opening
from edgespec_runtimes.gguf.own_draft.nested import NestedWeights
from edgespec_runtimes.gguf.weights.packing import (
    pack_resident,
    rounding_notes,
    turn_notes,
)
from edgespec_runtimes.gguf.weights.paged import PagedWeights, load_paged


class PreparedGguf(MeasuredGguf):
    """A prepared GGUF model."""

    @property
    def enforced(self) -> bool:
        return self._mapped.is_lazy and sys.platform != "win32"

    @property
    def lent(self) -> GgufFile | None:
        """The header of the file if a draft can compute with its pinned weights, after `needs`."""
        return self._header if not self.offloading.names and self.enforced else None

    def nest_in(self, draft: GgufFile) -> NestedWeights | None:
        """Have only the lower bits of what `draft` has the upper ones of read, before `needs`; None
        where weights are not here. Raises ModelError."""
        if self.gpu_memory is not None or self._choice.is_remote or not self.enforced:
            return None
        self._mapped.nested = nested = NestedWeights(draft, self._header)
        return nested

    def notes(self, plan: MemoryPlan | None = None) -> Sequence[str]:
        """Notes about packing, and the rounding of a target with a draft."""
        request = self.request
        notes = []
        may_stay = request.budget_bytes is None or self.info.size_bytes <= request.budget_bytes
        if not loading.packs() and (may_stay or request.owner == "draft"):
            slower = "weights that stay in memory are not packed and compute more slowly"
            notes.append(f"llama.cpp was built with AMX: {slower}; {loading.packing_advice()}")
        if plan is not None and request.owner == "target" and plan.max_nodes > 1:
            notes += rounding_notes(
                self._header,
                self.info.name,
                products_are_invariant=not self.offloading.names and can_replace_products(),
                is_packed=self.enforced or not plan.paged,
                tiles_are_avoidable=sys.platform == "linux",
                on_device=self.offloading.where,
            )
        notes += self.offloading.notes
        if plan is not None and request.owner == "target":
            notes += turn_notes(self._header, self.info)
            if has_layers(self._header) and (reason := obstacle(self._header)):
                notes.append(
                    f"{self.info.name} has layers of its own for guessing (MTP), which are not "
                    f"used ({reason}): {setting.draft} names a draft, an EAGLE-3 or a DFlash head"
                )
        return notes

    def tokens(self) -> Sequence[bytes]:
        return without_padding(self._header.token_table())

    def load(self, plan: MemoryPlan | None, progress: Progress | None = None) -> LanguageModel:
        if servers := self.offloading.placement.servers:
            from edgespec_runtimes.gguf.remote import RemoteModel

            return RemoteModel(partial(self._load, plan, progress), servers)
        return self._load(plan, progress)

    def _load(self, plan: MemoryPlan | None, progress: Progress | None) -> LanguageModel:
        owner = self.request.owner
        shape, _ = self.contexts[plan.batches.get(owner, 0) if plan else self.unplanned]
        if plan is None or not plan.paged or owner == "draft":
            return self._load_resident(shape, progress)
        if self.offloading.names:
            self._mapped.place(self.offloading.placement, is_paged=self.enforced)
        if not self.enforced:
            # llama.cpp's own mapping, on platforms that cannot enforce the budget
            return self._open(self._mapped.take_model(), shape, None)
        with self._phase("pinned weights"):
            model, weights = load_paged(self._mapped, self.request, plan, shape, progress)
        if sizes := self.buffers(shape):
            weights.buffers = PromptBuffers(sizes, weights.lend)
        return self._open(model, shape, weights)

    def cancel(self) -> None:
        self.stop.is_set = True

    def close(self) -> None:
        self._mapped.close()

    def _load_resident(
        self, shape: contexts.ContextShape, progress: Progress | None
    ) -> LanguageModel:
        texts = self._mapped.give_texts()
        with ExitStack() as on_failure:
            if texts:
                on_failure.callback(texts.close)
            with self._phase("weights"), WatchedFiles(self._header.paths) as files:
                model = loading.load_resident(
                    self._header.path,
                    self.offloading.placement,
                    self.stop,
                    progress,
                    self._header if texts else self._without_texts,
                )
                on_failure.callback(model.close)
                pack_resident(self._header, model, self.stop)
                heap.trim_heap()  # what the file's metadata took, before the context needs its own
                files.check()
            on_failure.pop_all()
        if texts:
            model.take_texts(texts)
        return self._open(model, shape, None)

    def _open(
        self,
        model: loading.Model,
        shape: contexts.ContextShape,
        paged: PagedWeights | None,
    ) -> LanguageModel:
        """A model that owns `model` and `paged`, which are closed on failure."""
        try:
            with self._phase("context"):
                texts = NoTexts(model.n_vocab) if self._without_texts else None
                vocabulary = texts or GgufVocabulary(model, self._header)
                info = replace(
                    self.info,
                    max_nodes=shape.n_outputs,
                    max_branches=shape.n_branches,
                    n_threads=shape.n_threads,
                )
                origin = self._state_origin(shape)
                return self._new_model(Opening(self, model, shape, info, vocabulary, origin, paged))
        except BaseException:
            close_all(model.close, *((paged.close,) if paged else ()))
            raise

    @property
    def _without_texts(self) -> GgufFile | None:
        """Header of a draft, whose tokenizer is not read; the target's turns ids into texts."""
        return self._header if self.is_draft and self._header.n_vocab else None

    def _new_model(self, opening: Opening) -> GgufModel:
        return GgufModel(opening)

    def _state_origin(self, shape: contexts.ContextShape) -> StateOrigin:
        settings = {
            "llama-cpp-python": loading.version(),
            "llama.cpp": loading.build(),
            "--cache-type-k": shape.cache_type_k,
            "--cache-type-v": shape.cache_type_v,
            "--flash-attn": shape.flash_attn,
            "--n-gpu-layers": str(self.offloading.placement.n_layers),
            "--rpc": ",".join(self.offloading.placement.servers),
            "kernels for prompts": "those of single rows, but for tiles",
            "packed weights": "those that round alike",
        }
        if contexts.window_shape(self._choice.n_window, shape):
            settings["layers with windows"] = "hold what a text may still see"
        if not self.info.max_ctx:
            settings["--ctx-size"] = str(shape.n_ctx)
        return StateOrigin(self._header.paths, settings)
