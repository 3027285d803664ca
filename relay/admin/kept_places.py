"""The ring positions at which a client would continue after a crash, from its report.

A report is small and comes every few seconds; the search takes no longer than that of an
event request.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from databus.daemon.client_report import ClientReport, RegistrationReport
from databus.relay.monitoring.clients import Client, KeptKey, Stream
from databus.relay.relay import Relay

# In a bootstrap a client continues at a bootstrap server, not in a ring.
BOOTSTRAP_MODES = frozenset(("snapshot", "catchup"))


def kept_places(
    relay: Relay, client: Client, report: ClientReport, host: str
) -> dict[KeptKey, Stream]:
    """Return a client's reported positions; `host` is the host of the request to this relay."""
    found = {}
    for one in report.registrations:
        name = _physical_source(relay, one)
        if name is None or not _counts_here(client, one, name, host):
            continue
        key = KeptKey(name, one.name, tuple(one.sources))
        stream = client.kept.get(key) or Stream(is_kept=True)
        if _find(stream, relay, client, name, one):
            found[key] = stream
    return found


def _physical_source(relay: Relay, one: RegistrationReport) -> str | None:
    """Return the physical source of all its sources; None if this relay has none."""
    catalog = relay.catalog
    found = [name for name in catalog.members if set(one.sources) <= set(catalog.members[name])]
    return found[0] if one.sources and found else None


def _counts_here(client: Client, one: RegistrationReport, name: str, host: str) -> bool:
    """Return whether a registration reads from this relay and reports its checkpoint."""
    if one.mode in BOOTSTRAP_MODES or "kept_scn" not in one.model_fields_set:
        return False
    has_asked = any(key.physical_source == name for key in client.streams)
    return has_asked or urlsplit(one.server).netloc == host


def _find(stream: Stream, relay: Relay, client: Client, name: str, one: RegistrationReport) -> bool:
    """Find a registration's position; return False if it is unknown.

    Without a checkpoint it is where the client first began to read.
    """
    source = relay.physical_sources.get(name)
    if source is None:
        return False
    if one.kept_scn is not None:
        return source.place_kept(stream, one.kept_scn)
    ids = relay.catalog.src_ids_of(name)
    stream.scn, stream.is_gone, stream.is_in_catch_up = None, False, False
    stream.position = client.began_in(name, frozenset(ids[source] for source in one.sources))
    return stream.position is not None
