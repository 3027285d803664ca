"""What the list of servers says of a relay."""

from __future__ import annotations

from databus.relay.physical_source import PhysicalSource
from databus.relay.relay import Relay
from databus.schemas.errors import UnusableSourceError
from databus.servers.entry import HeldSource


def held_sources(relay: Relay) -> dict[str, HeldSource]:
    """Return the physical sources that clients may read here; those that drain are not among them.

    None while the relay has not reached its databases, or ends.
    """
    if not relay.is_ready:
        return {}
    return {
        name: _held(source)
        for name, source in relay.physical_sources.items()
        if _is_served(source) and not relay.control.is_draining(name)
    }


def _is_served(source: PhysicalSource) -> bool:
    try:
        source.check_served()
    except UnusableSourceError:
        return False
    return True


def _held(source: PhysicalSource) -> HeldSource:
    history = source.history
    return HeldSource(tuple(source.settings.source_names), history.prev_scn, history.max_scn)
