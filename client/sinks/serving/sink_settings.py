"""The settings of a sink's client."""

from __future__ import annotations

from databus.conf.loading import build_settings
from databus.conf.settings import ClientSettings
from databus.conf.sink_settings import SinkSettings, SinksSettings


def client_settings(settings: SinksSettings, sink: SinkSettings) -> ClientSettings:
    """Return the settings of the client that reads for a sink."""
    raw = {
        "name": f"sink {sink.name}",
        "relays": settings.relays,
        "bootstrap_servers": settings.bootstrap_servers,
        "coordinator": settings.coordinator,
        "room": settings.room,
        "access": settings.access.model_dump(),
        "back_off": settings.back_off.model_dump(),
        "buffer_bytes": sink.buffer_bytes,
        "checkpoint_every_s": sink.positions_every_s,
    }
    if sink.start is not None:
        raw["start"] = sink.start
    return build_settings(raw, ClientSettings, f"sink {sink.name}")
