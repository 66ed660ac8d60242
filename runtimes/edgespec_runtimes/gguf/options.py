"""Options of GGUF models; imports no llama.cpp."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from edgespec.errors import UsageError, setting
from edgespec.settings.config import Count
from edgespec.settings.options import Flag, Role, RuntimeOptions

if TYPE_CHECKING:
    from edgespec.settings.config import LoadSettings

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
_CACHE_TYPES = ", ".join(get_args(CacheType))
_SERVER = re.compile(r"[\w.-]+:[1-9]\d{0,4}", re.ASCII)
_GPU = "on the GPU, with a GPU build of llama.cpp (default: 0)"


def _servers(value: object) -> object:
    """A list of addresses, separated by commas, without duplicates."""
    servers = [server.strip() for server in value.split(",")] if isinstance(value, str) else []
    wrong = [s for s in servers if not _SERVER.fullmatch(s) or int(s.rpartition(":")[2]) > 65535]
    if not isinstance(value, str) or (value and wrong) or len({*servers}) < len(servers):
        raise PydanticCustomError(
            "server",
            "write the addresses of servers like 192.168.1.2:50052, with commas, each once",
        )
    return ",".join(servers)


class GgufOptions(RuntimeOptions):
    """Options of llama.cpp's computation."""

    kind: ClassVar[str] = "a GGUF model"
    roles: ClassVar[Mapping[str, Role]] = {
        **dict.fromkeys(("n_gpu_layers", "rpc"), "target"),
        "n_gpu_layers_draft": "draft",
    }

    cache_type_k: Annotated[
        CacheType, Flag(f"type of the K cache: {_CACHE_TYPES} (default: f16)", "TYPE", "-ctk")
    ] = "f16"
    cache_type_v: Annotated[
        CacheType, Flag(f"type of the V cache: {_CACHE_TYPES} (default: f16)", "TYPE", "-ctv")
    ] = "f16"
    flash_attn: Literal["auto", "on"] = "auto"
    """Flash attention: `on` also for embedding models, which otherwise compute without."""
    n_gpu_layers: Annotated[Count, Flag(f"layers of the target {_GPU}", "N", "-ngl")] = 0
    n_gpu_layers_draft: Annotated[Count, Flag(f"layers of the draft {_GPU}", "N", "-ngld")] = 0
    rpc: Annotated[
        str,
        BeforeValidator(_servers),
        Flag(
            "llama.cpp's RPC servers, which hold as many layers of the target as they have memory "
            "for (-ngl: at most so many); see `edgespec rpc-server`",
            "HOST:PORT[,HOST:PORT]",
        ),
    ] = ""

    def check(self, load: LoadSettings) -> None:
        if load.draft is None and self.n_gpu_layers_draft:
            raise UsageError(
                f"{setting.n_gpu_layers_draft} needs a draft: name one with {setting.draft}"
            )

    def draft_on_gpu(self, n_layers: int) -> Mapping[str, Self]:
        if "n_gpu_layers_draft" in self.model_fields_set:
            return {}
        everything = n_layers + 1  # the output head counts as a layer
        return {f"-ngld {everything}": self.model_copy(update={"n_gpu_layers_draft": everything})}

    def servers_of(self, owner: str) -> tuple[str, ...]:
        """RPC servers for the target; none for a draft, whose many small passes cost latency."""
        return tuple(filter(None, self.rpc.split(","))) if owner == "target" else ()

    def gpu_layers_of(self, owner: str) -> int:
        """Layers of the target or of the draft that go to a GPU."""
        return self.n_gpu_layers_draft if owner == "draft" else self.n_gpu_layers
