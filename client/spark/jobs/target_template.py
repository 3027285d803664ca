"""The target of each table, from one text with `{schema}` and `{table}`. Pure.

Of `shop.orders` the schema is `shop` and the table `orders`. In a path a name may
not lead elsewhere, so characters other than letters, digits, `_`, `-`, a space and
dots that do not come first are written as `~` and their number, and different names
have different paths. In a database names are as they are.
"""

from __future__ import annotations

import re

from databus.conf.addresses import shown_uri
from databus.conf.patterns import is_pattern
from databus.schemas.errors import SettingsError

SCHEMA, TABLE = "{schema}", "{table}"
_UNSAFE = re.compile(r"[^\w\- .]|^[. ]|[. ]$")


def is_template(target: str) -> bool:
    """Return whether a target has places for names."""
    return SCHEMA in target or TABLE in target


def target_of(template: str, source: str) -> str:
    """Return the target of a source; raises SettingsError without `{table}` in the template."""
    if TABLE not in template:
        raise SettingsError(
            f"target {shown_uri(template)!r} is the same for every table: put {TABLE} in it, and "
            f"{SCHEMA} if tables of several schemas are read"
        )
    schema, _, table = source.rpartition(".") if source.count(".") == 1 else source.partition(".")
    if "://" in template and "#" in template:
        return template.replace(SCHEMA, schema).replace(TABLE, table)
    return template.replace(SCHEMA, _safe(schema)).replace(TABLE, _safe(table))


def check_target(target: str, source: str) -> None:
    """Raise SettingsError for a template, or a target of one table, that does not fit a source."""
    if is_template(target):
        target_of(target, "schema.table")
    else:
        check_one(source, target)


def check_one(source: str, target: str) -> None:
    """Raise SettingsError for several names, or a pattern, where the target is for one table."""
    names = [name for name in source.split(",") if name.strip()]
    if len(names) != 1 or is_pattern(names[0].strip()):
        raise SettingsError(
            f"target {shown_uri(target)!r} is for one table, and {source!r} may be several: put "
            f"{TABLE} into the target, and {SCHEMA} if tables of several schemas are read, as in "
            f"delta:lake/{SCHEMA}/{TABLE}"
        )


def _safe(name: str) -> str:
    return _UNSAFE.sub(lambda found: f"~{ord(found.group()):x}~", name)


def one_target(template: str, source: str, other: str) -> SettingsError:
    """Return the error for two sources whose targets would be the same."""
    return SettingsError(
        f"{source} and {other} have one target by {template!r}: put {{schema}} in it, too"
    )
