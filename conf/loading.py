"""Settings files: read into their models, and changed. Errors name the key, value and rule."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Sequence
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from pydantic import BaseModel, ValidationError

from databus.conf.addresses import without_password
from databus.conf.settings import Settings, SourceSettings
from databus.schemas.errors import SettingsError

Model = TypeVar("Model", bound=Settings)

# A source is a table with its name, or the name alone. Pydantic tries both and names them.
_FORMS = (SourceSettings.__name__, "str")
_MOST_HINTS = 3
_MOST_SHOWN = 120


def load_settings(path: Path, model: type[Model]) -> Model:
    """Read a TOML file into a model; relative paths are relative to the file.

    Raises SettingsError naming the file, the key, the value and the rule.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    return build_settings(raw, model, origin=str(path), file=path.absolute())


def build_settings(
    raw: dict[str, Any],
    model: type[Model],
    origin: str = "settings",
    file: Path | None = None,
) -> Model:
    """Validate plain values against a model; raises SettingsError.

    Relative paths are resolved against the folder of `file`; without it they stay unchanged.
    """
    try:
        context = {"folder": file.resolve().parent, "file": file} if file else None
        return model.model_validate(raw, context=context)
    except ValidationError as error:
        lines = [_explain(problem, model) for problem in _causes(error.errors())]
        raise SettingsError(f"{origin}: " + "; ".join(lines)) from None


def _causes(problems: list[Any]) -> list[Any]:
    """Drop problems that only follow from an inner one, such as a list that got too short."""
    found = [problem for problem in problems if not _is_other_form(problem)]
    places = [problem["loc"] for problem in found]
    return [problem for problem in found if not _is_around(problem["loc"], places)]


def _is_other_form(problem: Any) -> bool:
    """Return whether a source was tried in the form that it has not: as a name, or as a table."""
    form, is_table = problem["loc"][-1], isinstance(problem["input"], dict)
    return form in _FORMS and (form == "str") is is_table


def _is_around(outer: tuple[Any, ...], places: list[tuple[Any, ...]]) -> bool:
    return any(len(place) > len(outer) and place[: len(outer)] == outer for place in places)


def _explain(problem: Any, model: type[BaseModel]) -> str:
    key = ".".join(str(part) for part in problem["loc"] if part not in _FORMS)
    if problem["type"] == "missing":
        return f"{_in_toml(key, problem['loc'], model)} is missing"
    if problem["type"] == "extra_forbidden":
        return f"{key} is not a setting{_hint(problem['loc'], model)}"
    rule = _rule(problem)
    value = without_password(repr(problem["input"]))
    # Whole tables of a file say less than the rule, which names what is wrong in them.
    return f"{key}: {rule}" if len(value) > _MOST_SHOWN else f"{key} = {value}: {rule}"


def _rule(problem: Any) -> str:
    """Return what a value must be, in TOML's words."""
    if problem["type"] == "too_short":
        return f"give at least {problem['ctx']['min_length']}"
    if problem["type"] == "tuple_type":
        return 'give a list, as in ["…"]'
    return str(problem["msg"]).removeprefix("Value error, ")


def _in_toml(key: str, place: tuple[Any, ...], model: type[BaseModel]) -> str:
    """Return a key as it is written: a list of tables as `[[sinks]]`."""
    *outer, name = place
    fields = [
        one.model_fields[name] for one in _models_at(outer, model) if name in one.model_fields
    ]
    elements = [part for field in fields for part in get_args(field.annotation)[:1]]
    is_tables = any(isinstance(one, type) and issubclass(one, BaseModel) for one in elements)
    return f"[[{key}]]" if is_tables and not any(isinstance(one, int) for one in outer) else key


def _hint(place: tuple[Any, ...], model: type[BaseModel]) -> str:
    """Return the settings that are named nearly as the unknown one at a place; "" without any."""
    *outer, name = place
    known = sorted({field for one in _models_at(outer, model) for field in one.model_fields})
    longer = [one for one in known if one.startswith(f"{name}_") or name.startswith(f"{one}_")]
    near = longer or get_close_matches(name, known, n=2, cutoff=0.75)
    return f"; did you mean {' or '.join(near)}?" if 0 < len(near) <= _MOST_HINTS else ""


def _models_at(place: list[Any], model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the models that a table at a place of a model may have."""
    found = [model]
    for part in place:
        fields = (one.model_fields[part] for one in found if part in one.model_fields)
        # A number is a place in a list, and other words are forms of one: both are in its type.
        found = [one for field in fields for one in _models_in(field.annotation)] or found
    return found


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


class SettingsFile:
    """A settings file whose physical sources are changed; comments and order stay as they are.

    Nothing is written here: each change returns the new text. Raises SettingsError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()  # of a link the file behind it is replaced
        try:
            self.text = self.path.read_text(encoding="utf-8")
            self._raw = tomllib.loads(self.text)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SettingsError(f"{path}: {error}") from error

    def build(self, text: str, model: type[Model]) -> Model:
        """Return the settings of a text as if it were in the file."""
        return build_settings(tomllib.loads(text), model, str(self.path), self.path)

    def adding(self, source: dict[str, Any]) -> str:
        """Return the text with one more physical source at its end."""
        import tomlkit  # not needed by who only reads settings

        try:
            table = tomlkit.item({"physical_sources": [source]}).as_string()
        except (TypeError, ValueError) as error:  # TOML has no null, for one
            raise SettingsError(f"the settings are none: {error}") from error
        wanted = deepcopy(self._raw)
        wanted["physical_sources"].append(source)
        return self._proved(f"{self.text.rstrip()}\n\n{table.strip()}\n", wanted)

    def removing(self, name: str) -> str:
        """Return the text without a physical source."""
        import tomlkit

        document, wanted = tomlkit.parse(self.text), deepcopy(self._raw)
        at = self._place(name)
        del cast(list[Any], document["physical_sources"])[at]
        del wanted["physical_sources"][at]
        return self._proved(document.as_string(), wanted)

    def listing(self, name: str, add: Sequence[str], remove: Collection[str]) -> str:
        """Return the text with other sources of a physical source.

        `remove` has names or patterns as they are written.
        """
        import tomlkit

        document, wanted = tomlkit.parse(self.text), deepcopy(self._raw)
        at = self._place(name)
        for values in (document, wanted):
            sources = cast(Any, values)["physical_sources"][at]["sources"]
            for index in reversed(range(len(sources))):
                if _written(sources[index]) in remove:
                    del sources[index]
            sources.extend(one for one in add if one not in map(_written, sources))
        return self._proved(document.as_string(), wanted)

    def written(self, name: str) -> list[str]:
        """Return the names and patterns of a physical source, as they are written."""
        sources = self._raw["physical_sources"][self._place(name)]["sources"]
        return [_written(source) for source in sources]

    def _place(self, name: str) -> int:
        names = [one["name"] for one in self._raw["physical_sources"]]
        if name not in names:
            raise SettingsError(f"{self.path} has no physical source {name}")
        return names.index(name)

    def _proved(self, text: str, wanted: dict[str, Any]) -> str:
        """Return a text that says what is wanted; the library knows not every form of TOML."""
        try:
            if tomllib.loads(text) == wanted and text.encode():
                return text
        except ValueError:
            pass
        raise SettingsError(f"{self.path} has a form that cannot be changed here: edit it, restart")


def _written(source: Any) -> str:
    return str(source["name"] if isinstance(source, dict) else source)
