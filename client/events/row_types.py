"""Makes objects of an application's own class from rows: `DataEvent.into`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from databus.schemas.errors import RowError

Made = TypeVar("Made")
Make = Callable[[Mapping[str, Any]], Any]


def into(row_type: type[Made], row: Mapping[str, Any], source: str) -> Made:
    """Return an object of the class with the columns of its fields' names.

    Columns that the class does not have are left out. The class is a dataclass, a NamedTuple or a
    pydantic model, which checks and converts values; the other two take them as they are. Raises
    RowError if a field has neither a column nor a default, or if pydantic refuses a value, and
    TypeError for another class.
    """
    try:
        make: Make = _maker(row_type)  # type: ignore[arg-type]  # a class is hashable
        made: Made = make(row)
    except (LookupError, ValueError) as error:
        column, problem = _explain(error)
        raise RowError(source, column, f"{problem}: {row_type.__qualname__} needs it") from error
    return made


def _explain(error: Exception) -> tuple[str, str]:
    """Return the columns that are wrong, and why."""
    if isinstance(error, KeyError):
        return str(error.args[0]), "has no value in the row"
    if callable(errors := getattr(error, "errors", None)):  # of pydantic
        found = {".".join(map(str, one["loc"])) or "?": one["msg"] for one in errors()}
        return ", ".join(found), "; ".join(dict.fromkeys(found.values()))
    return "?", str(error)


@lru_cache(maxsize=256)
def _maker(row_type: type[Any]) -> Make:
    if dataclasses.is_dataclass(row_type):
        fields = [one for one in dataclasses.fields(row_type) if one.init]
        needed = [one.name for one in fields if _has_no_default(one)]
        return _by_keyword(row_type, [one.name for one in fields], needed)
    if hasattr(row_type, "model_validate"):
        # By alias or by name, as the model says; what it does not know it ignores or refuses.
        return lambda row: row_type.model_validate(dict(row))
    if issubclass(row_type, tuple) and hasattr(row_type, "_fields"):
        names, defaults = list(row_type._fields), getattr(row_type, "_field_defaults", {})
        return _by_keyword(row_type, names, [name for name in names if name not in defaults])
    raise TypeError(
        f"{row_type!r}: give a dataclass, a NamedTuple or a pydantic model, or use `event.row`"
    )


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


def _by_keyword(row_type: type[Any], names: list[str], needed: list[str]) -> Make:
    def make(row: Mapping[str, Any]) -> Any:
        for name in needed:
            row[name]  # a KeyError names the column
        return row_type(**{name: row[name] for name in names if name in row})

    return make
