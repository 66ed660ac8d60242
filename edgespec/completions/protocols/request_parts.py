"""The base of objects in requests: all of their fields are known, and numbers are numbers."""

from __future__ import annotations

from typing import get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError


class RequestPart(BaseModel):
    """An object in a request, all of whose fields are known."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _reject_bool(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, bool) and _is_number(
            cls.model_fields[info.field_name or ""].annotation
        ):
            raise PydanticCustomError(
                "bool", "it must be a number, not {value}", {"value": str(value).lower()}
            )
        return value


def _is_number(annotation: object) -> bool:
    """True for the type of a field with numbers, or with numbers or nothing."""
    kinds = {annotation, *get_args(annotation)}
    return not kinds.isdisjoint({int, float}) and bool not in kinds
