"""The settings of sinks: of a file of their own, or of the file of `databus run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from databus.conf.loading import build_settings, load_settings
from databus.conf.reference import kind_of
from databus.conf.settings import RelaySettings
from databus.conf.sink_settings import SinksSettings
from databus.schemas.errors import SettingsError

_TOKENS = ("reader_tokens_file", "admin_tokens_file", "reader_token_env", "admin_token_env")


def load_sinks(file: Path) -> SinksSettings:
    """Return the settings of the sinks of either file; raise SettingsError."""
    if kind_of(file) != "relay":
        return load_settings(file, SinksSettings)
    settings = load_settings(file, RelaySettings)
    if not settings.sinks:
        raise SettingsError(f"{file}: there are no [[sinks]] in it")
    return sinks_beside(settings)


def sinks_beside(
    settings: RelaySettings,
    relay_url: str = "http://127.0.0.1",
    bootstrap_url: str = "http://127.0.0.1",
    access: dict[str, Any] | None = None,
) -> SinksSettings:
    """Return the settings of the sinks beside a relay and its pair, which serve at these URLs.

    Their commands ask at a free port of this machine, with the tokens of the relay.
    """
    raw: dict[str, Any] = {
        "data_dir": settings.data_dir / "sinks",
        "relays": (relay_url,),
        "bootstrap_servers": (bootstrap_url,),
        "access": access or {},
        "room": settings.room,
        "log_format": settings.log_format,
        "http": {name: getattr(settings.http, name) for name in _TOKENS},
        "sinks": settings.sinks,
    }
    return build_settings(raw, SinksSettings, "[[sinks]]")
