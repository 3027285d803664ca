"""What planning knows of the windows of a query's relays, whichever project they are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from databus.client.spark.options import SourceOptions
from databus.client.spark.planning.capture_states import Stopped
from databus.client.spark.planning.measured_windows import MeasuredWindows, find_homes
from databus.client.spark.planning.offsets import AtScn, Group
from databus.client.spark.planning.requests import LogMeasure
from databus.client.spark.planning.server_pool import Answer, ServerPool
from databus.client.spark.planning.stock_windows import StockWindows
from databus.conf.named_places import NamedPlace
from databus.schemas.errors import (
    InvalidParameterError,
    ServerError,
    SettingsError,
    UnknownCommandError,
)


class RelayWindows(Protocol):
    """The windows in the rings of a query's relays.

    `idle_s` is the pause before an idle query asks again, `gone_advice` what to do when
    windows are gone. `tells_evicted` is false for a relay that does not say whether the
    window before its oldest one was evicted or never there.
    """

    idle_s: float
    gone_advice: str
    tells_evicted: bool
    by_physical: Mapping[str, tuple[str, ...]]
    src_ids: Mapping[str, int]

    def look_again(self) -> None:
        """Ask again for the sources that the relays have, if the query chooses by patterns."""
        ...

    def stopped(self, at_once: bool, /) -> Mapping[str, Stopped]:
        """Return the physical sources that are known not to be captured."""
        ...

    def resolved(self, group: Group, start: NamedPlace, /) -> NamedPlace:
        """Return a start that the relays measure from; raises as `MeasureClient.resolved`."""
        ...

    def after(
        self, group: Group, place: AtScn, rows: int | None, target: int | None, /
    ) -> LogMeasure:
        """Measure at most `rows` rows after a place, up to `target`.

        Raises ScnNotFoundError; OtherLogError if its mark is of another log.
        """
        ...

    def from_start(
        self, group: Group, start: NamedPlace, rows: int | None, target: int | None, /
    ) -> LogMeasure:
        """Measure rows from the place that the option `start` names."""
        ...

    def made_at(self, source: str, /) -> int | None:
        """Return the SCN of a table's CREATE, or None; raises SchemaNotFoundError."""
        ...

    def oldest(self, name: str, /) -> int:
        """Return the SCN of the oldest window."""
        ...


def find_windows(options: SourceOptions, relays: ServerPool) -> RelayWindows:
    """Return the windows of the relays; what the relays answer says of which project they are.

    Raises UnknownSourceError; SettingsError for relays of both.
    """
    try:
        homes = find_homes(relays)
    except (ServerError, UnknownCommandError):
        if not _are_stock(relays):
            raise
        return StockWindows(options, relays)
    return MeasuredWindows(options, relays, homes)


def _are_stock(relays: ServerPool) -> bool:
    """Return whether the relays have no `/measure`; raises SettingsError if some of them have."""
    ours, stock = [], []
    for url, answer in relays.ask_each("/measure"):
        if isinstance(answer, UnknownCommandError):
            stock.append(url)
        elif isinstance(answer, Answer | InvalidParameterError):
            ours.append(url)
    if ours and stock:
        raise SettingsError(
            f"option relays: {', '.join(stock)} is a LinkedIn relay and {', '.join(ours)} one of "
            "this project: their SCNs are not the same; name relays of one kind"
        )
    return bool(stock)
