"""The checks of `databus doctor` on a coordinator: whether it can be used, and whom it lists."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from databus.doctor.checks import Check, error, ok, warning
from databus.doctor.machine import Machine
from databus.doctor.servers import CLOCK_WARNING_S
from databus.leases.errors import LeaseUnavailableError
from databus.leases.places import open_records
from databus.leases.records import change
from databus.schemas.errors import DatabusError
from databus.servers.directory import EVERY_S, SILENT_S
from databus.servers.entry import ServerEntry
from databus.servers.places import open_directory

SUBJECT = "coordinator"
RECORD = "doctor"  # what is written to see that it can be; nobody reads it


def check_coordinator(
    url: str, machine: Machine, *, writes: bool
) -> tuple[list[Check], list[ServerEntry]]:
    """Check a coordinator; return its servers, too. `writes` = who uses it also writes to it."""
    try:
        with closing(open_directory(url)) as directory:
            entries = sorted(directory.entries(), key=lambda one: (one.kind, one.url))
            shown = directory.shown
        if writes:
            with closing(open_records(url)) as records:
                change(records, RECORD, lambda _: b"{}")
    except LeaseUnavailableError as problem:
        return [error(SUBJECT, f"{problem}; is it started, is the URL right?")], []
    except DatabusError as problem:  # it says itself what to do
        return [error(SUBJECT, str(problem))], []
    can = "read and written" if writes else "read"
    listed = [ok(SUBJECT, f"{shown} can be {can}, and lists {_listed(entries)}")]
    return [*listed, *check_ages(entries, machine.now_s())], entries


def check_ages(entries: Sequence[ServerEntry], now_s: float) -> list[Check]:
    """Check when servers wrote their entries, by their clocks and by this machine's."""
    found = []
    for entry in entries:
        age_s, subject = now_s - entry.renewed, f"listed {entry.kind} {entry.url}"
        if age_s <= -CLOCK_WARNING_S:
            text = f"its clock is {-age_s:.0f} s ahead of this machine's: run NTP on both"
            found.append(warning(subject, text))
        elif age_s > EVERY_S + SILENT_S + CLOCK_WARNING_S:
            text = (
                f"it was last heard of {age_s:.0f} s ago: it has ended without a word and is "
                f"listed no more within {SILENT_S:g} s, or its clock is behind this machine's: "
                "run NTP on both"
            )
            found.append(warning(subject, text))
    return found


def _listed(entries: Sequence[ServerEntry]) -> str:
    if not entries:
        return "no server"
    names = (f"{e.kind} {e.url}" + (f" in room {e.room}" if e.room else "") for e in entries)
    return f"{len(entries)} servers: {', '.join(names)}"
