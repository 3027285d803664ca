"""Stops the tables of an error alone, so that capture goes on for the others."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Protocol

from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.log_setup import about
from databus.relay.capture.capture_ring import CaptureRing
from databus.schemas.errors import SourceStoppedError

log = logging.getLogger(__name__)


class TableStops(Protocol):
    """The sources of one ring that are stopped alone."""

    @property
    def stops(self) -> Collection[str]:
        """Their names."""
        ...

    def stop(self, sources: Sequence[str], problem: str, since: float) -> bool:
        """Stop sources after the ring's newest window, unless that leaves none; raise RingError."""
        ...


class _NoStops:
    """A ring whose sources are all stopped together."""

    stops: Collection[str] = ()

    def stop(self, sources: Sequence[str], problem: str, since: float) -> bool:  # noqa: ARG002
        """Stop nothing."""
        return False


NO_STOPS = _NoStops()


def stop_tables(
    error: Exception,
    settings: PhysicalSourceSettings,
    stops: TableStops,
    ring: CaptureRing,
    since: float,
) -> bool:
    """Stop the tables that an error concerns; return False if it concerns others, too.

    Raises RingError if that cannot be saved.
    """
    if not isinstance(error, SourceStoppedError) or not error.tables:
        return False
    name, scn = settings.name, ring.max_scn
    sources = [settings.names.name_of(table) for table in error.tables]
    problem = (
        f"At {error.position or 'the next window'}: {error.problem}{error.advice}. Then let the "
        f"relay take it in again, with all rows since: `databus source repair {name} {sources[0]}` "
        "(with --scn and the number of above it sets the definition, too, and the relay need not "
        "be stopped). Where that is refused, capture all again from there: "
        f'POST /api/v1/physicalSources/{name}/restart {{"scn": "{max(scn, 0)}"}}'
    )
    if not stops.stop(sources, problem, since):
        return False
    text = "%s: %s stopped alone, the other sources go on: %s"
    log.error(text, name, ", ".join(sources), error, extra=about(physical_source=name, scn=scn))
    return True
