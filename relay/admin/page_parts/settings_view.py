"""The settings that a relay runs with: `GET /api/v1/settings`, for admins, without passwords."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pydantic import Field, JsonValue

from databus.daemon.http.openapi import ApiModel, Call, Endpoint
from databus.relay.admin.page_parts.admins import FOR_ADMINS, check_admin
from databus.relay.relay import Relay

HIDDEN = "…"
# Secrets are in files and variables, which settings name. But a URL may have a password.
_IN_USER = re.compile(r"(//[^/@:]*):.*@")
_IN_QUERY = re.compile(r"([?&][^=&]*(?:pass|secret|token|key|credential)[^=&]*=)[^&]*", re.I)


class SettingView(ApiModel):
    """One setting; of a list of tables, the table's name is in the key."""

    key: str
    value: str = Field(description="As text, without passwords; empty = none")
    is_set: bool = Field(description="It is in the settings file; otherwise it is the default")


class SettingsView(ApiModel):
    """All settings, in the order of the reference."""

    settings: list[SettingView]


class SettingsStatus:
    """Answers with the settings."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def endpoints(self, root: str) -> Sequence[Endpoint]:
        """Return its endpoint."""
        text = "The settings that the relay runs with, without passwords"
        path, errors = f"{root}/settings", FOR_ADMINS
        return (Endpoint("GET", path, text, SettingsView, self.settings, errors=errors),)

    async def settings(self, call: Call) -> SettingsView:
        """Return all settings; raise ForbiddenError for a reader."""
        check_admin(call.peer)
        settings = self._relay.settings
        written = {key for key, _ in _flat(settings.model_dump(mode="json", exclude_unset=True))}
        return SettingsView(
            settings=[
                SettingView(key=key, value=value, is_set=key in written)
                for key, value in _flat(settings.model_dump(mode="json"))
            ]
        )


def without_secrets(text: str) -> str:
    """Return a text without the passwords that a URL in it may have."""
    return _IN_QUERY.sub(rf"\1{HIDDEN}", _IN_USER.sub(rf"\1:{HIDDEN}@", text))


def _flat(value: JsonValue, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each plain value with its dotted key."""
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from _flat(one, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        for number, one in enumerate(value):
            label = one.get("name", number) if isinstance(one, Mapping) else number
            yield from _flat(one, f"{key}.{label}")
    else:
        yield key, _text(value)


def _text(value: JsonValue) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else without_secrets(str(value))
