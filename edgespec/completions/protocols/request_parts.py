"""The base of objects in requests: null is a field left out, all fields of most objects are known,
and numbers are numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError

_NULL = {"type": "null"}


class TakesNulls(BaseModel):
    """An object in which null stands for a field left out, as clients send it."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, content: Any) -> Any:
        if not isinstance(content, Mapping):
            return content
        names = {field.alias or name for name, field in cls.model_fields.items()}
        return {k: value for k, value in content.items() if value is not None or k not in names}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The JSON schema, in which all optional fields may be null."""
        schema = handler(core_schema)
        fields = handler.resolve_ref_schema(schema)
        optional = fields.get("properties", {}).keys() - {*fields.get("required", ())}
        for name in optional:
            its = fields["properties"][name]
            if _NULL not in its.get("anyOf", ()) and its.get("type") != "null":
                fields["properties"][name] = {"anyOf": [its, _NULL]}
        return schema


class RequestPart(TakesNulls):
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
