"""What a client tells of itself, made from its registrations' figures."""

from __future__ import annotations

import json
import secrets
from typing import Literal

from databus.client.machines.states import BOOTSTRAPPING, Connection
from databus.client.puller.buffer_items import Phase
from databus.client.registration import Registration
from databus.client.stats import Figures
from databus.client.subscription import Subscription
from databus.daemon.client_report import MAX_TEXT, ClientReport, RegistrationReport
from databus.schemas.filters import filters_to_json

MAX_REGISTRATIONS = 100
_MAX_SOURCES = 500
_MAX_NAME = 200
_MAX_PLACE = 300

Mode = Literal["online", "snapshot", "catchup", "starting", "stopped"]


def new_client_id() -> str:
    """Return a new id for a client: short, and nobody else's."""
    return secrets.token_hex(5)


def report_of(registration: Registration) -> RegistrationReport:
    """Return how a registration is now; any thread. Long texts are shortened."""
    figures, status = registration.figures, registration.status
    subscription = registration.subscription
    return RegistrationReport(
        name=subscription.name[:_MAX_NAME],
        sources=list(subscription.sources[:_MAX_SOURCES]),
        filters=filters_text(subscription)[:MAX_TEXT],
        mode=mode_of(registration.connection, figures, has_read=registration.relay is not None),
        connection=status.state,
        server=(status.server or "")[:_MAX_PLACE],
        scn=status.scn if status.scn >= 0 else None,
        snapshot_source=figures.snapshot_source[:_MAX_PLACE],
        snapshot_rows=figures.snapshot_rows,
        events=figures.events,
        windows=figures.windows,
        events_per_s=round(figures.events_per_s, 1),
        buffered_bytes=max(0, status.buffered_bytes),
        callback_p50_s=figures.quantile_s(0.5),
        callback_p99_s=figures.quantile_s(0.99),
        retries=figures.retries,
        bootstraps=figures.bootstraps,
        problem=registration.problem[:MAX_TEXT],
    )


def text_for_relays(report: ClientReport) -> bytes:
    """Return a report without what relays have said themselves, and older ones do not know."""
    return report.model_dump_json(by_alias=True, exclude={"waits_for"}).encode()


def mode_of(connection: Connection, figures: Figures, *, has_read: bool) -> Mode:
    """Return what is being consumed, not what is being read: that may be further.

    `has_read`: whether a relay has ever answered a request for events.
    """
    if connection is Connection.CLOSED:
        return "stopped"
    if figures.phase is not Phase.LIVE:
        return "snapshot" if figures.phase is Phase.SNAPSHOT else "catchup"
    if connection in BOOTSTRAPPING:
        return "snapshot"
    return "online" if has_read else "starting"


def filters_text(subscription: Subscription) -> str:
    """Return the filters by source as JSON; empty without any."""
    if not subscription.filters:
        return ""
    by_source = {
        source: json.loads(filters_to_json({0: one}))["0"]
        for source, one in subscription.filters.items()
    }
    return json.dumps(by_source)
