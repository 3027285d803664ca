"""What the list of servers says of a relay."""

from __future__ import annotations

from databus.relay.physical_source import PhysicalSource
from databus.relay.relay import Relay
from databus.relay.sources.upstream.requests import url_of
from databus.schemas.errors import UnusableSourceError
from databus.servers.entry import HeldSource


def held_sources(relay: Relay) -> dict[str, HeldSource]:
    """Return the physical sources that are served here, and which of them drain.

    None while the relay has not reached its databases, or ends.
    """
    if not relay.is_ready:
        return {}
    return {
        name: _held(source, is_draining=relay.control.is_draining(name))
        for name, source in relay.physical_sources.items()
        if _is_served(source)
    }


def _is_served(source: PhysicalSource) -> bool:
    try:
        source.check_served()
    except UnusableSourceError:
        return False
    return True


def read_from(source: PhysicalSource) -> str:
    """Return the URL of the relay that a physical source is read from; "" = its database."""
    settings = source.capture.servers.settings
    return url_of(settings.uri) if settings.is_relay else ""


def _held(source: PhysicalSource, *, is_draining: bool) -> HeldSource:
    history = source.history
    return HeldSource(
        tuple(source.settings.source_names),
        history.prev_scn,
        history.max_scn,
        read_from(source),
        history.latest_timestamp_ns / 1e9,
        is_draining,
    )
