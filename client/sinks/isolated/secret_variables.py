"""Environment variables that settings name: they have passwords and tokens. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from databus.conf.model import Settings

_SUFFIX = "_env"


def secret_variables(settings: Settings) -> frozenset[str]:
    """Return the names of the variables that are the values of `token_env`, `password_env` …"""
    return frozenset(_named(settings))


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, Settings):
        for name in type(value).model_fields:
            held = getattr(value, name)
            if name.endswith(_SUFFIX) and isinstance(held, str):
                yield held
            else:
                yield from _named(held)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _named(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _named(one)
