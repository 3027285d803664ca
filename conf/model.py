"""The base of all settings models, and the types of their fields."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator

from databus.conf.named_places import parse_place
from databus.conf.units import parse_size_bytes
from databus.schemas.errors import SettingsError

SizeBytes = Annotated[int, BeforeValidator(parse_size_bytes)]


def _with_scn_as_text(value: object) -> object:
    return str(value) if type(value) is int else value


def _place_text(value: object) -> object:
    if not isinstance(value, str | int) or isinstance(value, bool):
        return value
    try:
        return str(parse_place(value))
    except SettingsError as error:
        raise ValueError(str(error)) from None


PlaceText = Annotated[str, BeforeValidator(_place_text)]  # a named place, or an SCN as a number
Start = Annotated[str, BeforeValidator(_with_scn_as_text)]  # a word or an SCN, also as a number


class Settings(BaseModel):
    """The base of all settings: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*")
    @classmethod
    def _from_the_file(cls, value: Any, info: ValidationInfo) -> Any:
        """Resolve a relative path against the folder of its settings file, if there is one."""
        if isinstance(value, Path) and info.context:
            return info.context["folder"] / value
        return value
