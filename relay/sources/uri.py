"""The URI of a physical source, taken apart.

`sqlite:/path/shop.db?fsync=off`, `mysql://user@host:3306`, `generator:?rate=100`.
Nothing is opened here, and no password is looked for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from databus.schemas.errors import SettingsError


@dataclass(frozen=True, slots=True)
class SourceUri:
    """A scheme, what follows it, and the parameters behind the question mark."""

    scheme: str
    path: str
    parameters: dict[str, str] = field(default_factory=dict)

    def check(self, known: Collection[str]) -> None:
        """Raise SettingsError when a parameter is not one of `known`."""
        for name in self.parameters:
            if name not in known:
                raise SettingsError(
                    f"uri = {self.scheme}: {name!r} is not a parameter; "
                    f"known: {', '.join(sorted(known)) or 'none'}"
                )

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """Return a numeric parameter; raises SettingsError naming its range."""
        text = self.parameters.get(name, "")
        try:
            value = float(text) if text else default
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise SettingsError(
                f"uri = {self.scheme}: {name} = {text!r}: must be a number from {low} to {high}"
            )
        return value


def parse_uri(text: str) -> SourceUri:
    """Split a source URI; raises SettingsError when it has no scheme.

    `sqlite:shop.db` is a relative path, `sqlite:/shop.db` and `sqlite:///shop.db`
    are absolute ones.
    """
    scheme, colon, rest = text.partition(":")
    if not colon or not scheme.replace("+", "").isalnum():
        raise SettingsError(f"uri = {text!r}: must begin with a scheme such as `sqlite:`")
    path, _, query = rest.partition("?")
    if path.startswith("///"):
        path = path[2:]
    return SourceUri(scheme.lower(), unquote(path), dict(parse_qsl(query, keep_blank_values=True)))
