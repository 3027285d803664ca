"""The base of all settings models, and the types of their fields."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator

from databus.conf.named_places import NamedPlace, parse_place, parse_source_start
from databus.conf.units import parse_size_bytes
from databus.schemas.errors import SettingsError

SizeBytes = Annotated[int, BeforeValidator(parse_size_bytes)]


def _place_text(parse: Callable[[str | int | datetime], NamedPlace], value: object) -> object:
    if not isinstance(value, str | int | datetime) or isinstance(value, bool):
        return value
    try:
        return str(parse(value))
    except SettingsError as error:
        raise ValueError(str(error)) from None


def place_text(place: str | int | datetime) -> str:
    """Return a place where a consumer begins as text; raise SettingsError."""
    return str(parse_place(place))


# Named places, or SCNs as numbers: where a consumer begins, and where a relay begins.
PlaceText = Annotated[str, BeforeValidator(partial(_place_text, parse_place))]
SourceStart = Annotated[str, BeforeValidator(partial(_place_text, parse_source_start))]


def known_zone(name: str) -> str:
    """Return the name of a time zone; raise ValueError if this machine has none of that name."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"{name!r} is no time zone of this machine: write it as Europe/Paris"
        ) from None
    return name


class Settings(BaseModel):
    """The base of all settings: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    reads_texts: ClassVar[bool] = False  # all values may be texts, as the options of Spark are

    @field_validator("*", mode="before")
    @classmethod
    def _of_its_type(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse a text for a switch or a number: "no" would be false, and "0" a number."""
        field = cls.model_fields[str(info.field_name)]
        if cls.reads_texts or any(isinstance(one, BeforeValidator) for one in field.metadata):
            return value
        types = {*(get_args(field.annotation) or (field.annotation,))} - {type(None)}
        if types == {bool} and not isinstance(value, bool | None):
            raise ValueError("write true or false, without quotes")
        if types <= {int, float} and isinstance(value, str | bool):
            raise ValueError("write a number, without quotes")
        return value

    @field_validator("*")
    @classmethod
    def _from_the_file(cls, value: Any, info: ValidationInfo) -> Any:
        """Resolve a relative path against the folder of its settings file, if there is one."""
        if isinstance(value, Path) and info.context:
            return info.context["folder"] / value
        return value
