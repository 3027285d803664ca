"""Settings of columns: which of a table are captured, and masks in place of their values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator, model_validator

from databus.conf.model import Settings
from databus.conf.patterns import NamePatterns, is_pattern, unescaped
from databus.conf.source_names import NamedTable, doubles

_MASK = re.compile(r"hash|redact|truncate:[1-9][0-9]{0,4}")


class ColumnSettings(Settings):
    """The columns of some tables: what is not captured, and what is masked.

    Several entries may match a table: what one of them leaves out or masks, no other brings back.
    """

    tables: tuple[str, ...] = Field(
        min_length=1,
        description="Tables in the database, by name (`shop.users`) or by patterns such as "
        "`shop.*` and `!shop.tmp_*`",
    )
    include: tuple[str, ...] = Field(
        default=(),
        description="Capture these columns, by name or pattern, and no others, also none that are "
        "added later",
    )
    exclude: tuple[str, ...] = Field(
        default=(), description="Capture all columns but these, by name or pattern"
    )
    mask: dict[str, str] = Field(
        default_factory=dict,
        description="Column, by name or pattern: `hash` (HMAC-SHA-256 with the key in "
        "`mask_key_file`), `redact` (NULL, or the text `redacted` where a column cannot be NULL) "
        "or `truncate:N` (the first N characters)",
    )

    @field_validator("exclude")
    @classmethod
    def _one_list(cls, exclude: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if exclude and info.data.get("include"):
            raise ValueError("give `include` or `exclude`, not both")
        return exclude

    @field_validator("mask")
    @classmethod
    def _are_masks(cls, mask: dict[str, str]) -> dict[str, str]:
        for column, text in mask.items():
            if not _MASK.fullmatch(text):
                raise ValueError(
                    f"{column} = {text!r} is no mask: write `hash`, `redact`, or `truncate:8` for "
                    "the first 8 characters"
                )
            if column.startswith("!"):
                raise ValueError(f"{column!r} leaves a column out of what no pattern takes in")
        return mask

    @model_validator(mode="after")
    def _says_something(self) -> ColumnSettings:
        if not (self.include or self.exclude or self.mask):
            raise ValueError("it says nothing of columns: give `include`, `exclude` or `mask`")
        lists = ("tables", self.tables), ("include", self.include), ("exclude", self.exclude)
        for key, names in lists:
            if twice := doubles(names):
                raise ValueError(f"{key}: {twice[0]} is named twice")
            if names and all(name.startswith("!") for name in names):
                raise ValueError(f"{key}: {names[0]!r} leaves out of what no pattern takes in")
        both = [name for name in self.mask if name in self.exclude]
        if both:
            raise ValueError(f"{both[0]} is left out and masked: take one of the two away")
        return self

    def concerns(self, table: str) -> bool:
        """Return whether it is about a table; where case does not matter to the database, nor here.

        Without certainty it is: a table must not be captured as it is by its spelling.
        """
        return NamePatterns(self.tables).may_match(table)

    @property
    def hashes(self) -> bool:
        """Whether a column is hashed, which needs a key."""
        return "hash" in self.mask.values()


def check_columns(
    columns: Sequence[ColumnSettings], listed: Iterable[NamedTable], patterns: NamePatterns
) -> None:
    """Raise ValueError if an entry names a table that the sources cannot be captured from."""
    sources = list(listed)
    tables = [source.table for source in sources]
    for text in (text for entry in columns for text in entry.tables):
        if text.startswith("!"):
            continue
        name, meant = unescaped(text), NamePatterns([text])
        may_be_found = bool(patterns) if is_pattern(text) else patterns.may_match(name)
        if not may_be_found and not any(map(meant.may_match, tables)):
            own = [s.table for s in sources if s.name == name]
            hint = f": its table is {own[0]}" if own else ""
            raise ValueError(f"columns: {text!r} is no table among `sources`{hint}")


def unnamed(columns: Sequence[ColumnSettings], table: str, generated: Iterable[str]) -> list[str]:
    """Return those of a table's generated columns that the entries show without naming them.

    They may have the values of columns that are left out or masked.
    """
    entries = [entry for entry in columns if entry.concerns(table)]
    if not entries or any(entry.include for entry in entries):
        return []  # what a list takes in is named
    named = [NamePatterns((*one.exclude, *one.mask), fold_case=True) for one in entries]
    return [name for name in generated if not any(one.match(name) for one in named)]


def columns_of(
    columns: Sequence[ColumnSettings], tables: Sequence[str]
) -> tuple[ColumnSettings, ...]:
    """Return what the entries say of some tables, so that `check_columns` finds each of them."""
    found = []
    for entry in columns:
        texts = [one for one in entry.tables if one.startswith("!") or _has(one, tables)]
        if any(not one.startswith("!") for one in texts):
            found.append(entry.model_copy(update={"tables": tuple(texts)}))
    return tuple(found)


def _has(text: str, tables: Sequence[str]) -> bool:
    return any(map(NamePatterns([text]).may_match, tables))


def check_masks(
    columns: Sequence[ColumnSettings], key_file: Path | None, on_statement: str
) -> None:
    """Raise ValueError if masks lack what they need, or something would go round them."""
    if any(entry.hashes for entry in columns) and key_file is None:
        raise ValueError(
            "mask_key_file: a column is masked by `hash`, which needs a key: `openssl rand -base64 "
            "32 > FILE; chmod 600 FILE`, and name the file here"
        )
    if columns and on_statement == "deliver":
        raise ValueError(
            "on_statement: `deliver` hands statements over with the values in them, also those of "
            "columns that `columns` leaves out or masks: take one of the two settings out"
        )
