"""The other relays of one physical source: what they said last, and what was agreed with them.

The rules are in `agreement.py`. An epoch that all of them have agreed to is noted in the table of
epochs, so a relay that goes on with it needs none of them. A relay that has not agreed with each of
its peers serves nothing of the source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Lock

from databus.conf.addresses import without_password
from databus.conf.settings import PhysicalSourceSettings
from databus.daemon.log_setup import about
from databus.relay.capture.epoch_table import EpochTable
from databus.relay.capture.peers.agreement import (
    Claim,
    Decision,
    PeerTable,
    Taken,
    conflict_of,
    decide,
    marks_of,
    newest_of,
    passed_places,
)
from databus.relay.capture.peers.asking import AskPeer
from databus.relay.sources.epochs import Agreed, EpochWaitError, PeersElsewhereError
from databus.schemas.errors import ServerError, SourceStoppedError

log = logging.getLogger(__name__)

_MOST_CLAIMS = 4  # the number changes with what is found


class Peers:
    """`agree`, `begun` and `withdraw` are for the capture thread, the rest for any.

    `uri` returns that of the server to connect to.
    """

    def __init__(
        self,
        settings: PhysicalSourceSettings,
        table: EpochTable,
        ask: AskPeer,
        uri: Callable[[], str],
        relay_id: str = "",
    ) -> None:
        self._name, self.urls = settings.name, settings.epoch_peers
        self._table, self._ask, self._uri = table, ask, uri
        self.relay_id = relay_id
        self.claim: Claim | None = None
        self._lock = Lock()
        self._known: dict[str, PeerTable] = {}
        self._silent: dict[str, str] = {}
        self.conflict = ""  # of the epochs here and there

    @property
    def is_agreed(self) -> bool:
        """Whether every peer has agreed, and none has begun anything else since."""
        return set(self.urls) <= self._table.agreed_with and not self.conflict

    @property
    def problem(self) -> str:
        """Why nothing is served; "" if all is agreed."""
        if self.conflict:
            return self.conflict
        missing = [url for url in self.urls if url not in self._table.agreed_with]
        if not missing:
            return ""
        return f"its epoch is not agreed on with {', '.join(missing)} yet; see `epoch_peers`"

    @property
    def silent(self) -> dict[str, str]:
        """The peers that do not answer, and why."""
        with self._lock:
            return dict(self._silent)

    @property
    def ahead(self) -> Taken | None:
        """The newest epoch of the others, if it is newer than all of this relay."""
        found, newest = newest_of(self._tables()), self._table.newest
        is_newer = found is not None and (newest is None or found.number > newest.number)
        return found if is_newer else None

    def passed(self) -> list[tuple[int, int]]:
        """Return ranges of SCNs that others alone have delivered; see `passed_places`."""
        return passed_places(self._table.epochs, self._tables())

    def look(self) -> None:
        """Ask all of them."""
        for url in self.urls:
            try:
                found = self._ask(url)
            except ServerError as error:
                with self._lock:
                    self._silent[url] = str(error)
            else:
                with self._lock:
                    self._silent.pop(url, None)
                    self._known[url] = found
        self.conflict = conflict_of(self._table.epochs, self._tables())

    def agree(self, number: int, server: str) -> Agreed:
        """Return the epoch with which all read a server; see `Agree`."""
        newest = self._table.newest
        is_settled = newest is not None and (newest.number, newest.server) == (number, server)
        is_settled = is_settled and self.is_agreed
        if is_settled:
            self.claim = None
        # Before anything is claimed: otherwise one that has given way would be in the way again.
        found, tables = self._decide(number, server, may_be_silent=is_settled)
        if is_settled and found.number == number:
            return Agreed(number, marks_of(tables, number))
        for _ in range(_MOST_CLAIMS):
            number = found.number
            self.claim = Claim(number, server, self._shown_uri())
            found, tables = self._decide(number, server)
            if found.number == number:
                return self._settle(number, server, tables)
        raise EpochWaitError(f"{self._name}: the epochs of its other relays change; asking again")

    def begun(self) -> None:
        """Note that the claimed epoch has begun, and is in the table."""
        self.claim = None

    def withdraw(self) -> None:
        """Give up the claim: the server was not read."""
        self.claim = None

    def _decide(
        self, number: int, server: str, *, may_be_silent: bool = False
    ) -> tuple[Decision, Sequence[PeerTable]]:
        """Ask all, and return the number to read a server with; raises as `agree`."""
        tables = self._ask_all(number, may_be_silent=may_be_silent)
        found = decide(self._table.epochs, number, server, tables)
        self._raise_for(found)
        return found, tables

    def _settle(self, number: int, server: str, tables: Sequence[PeerTable]) -> Agreed:
        self._table.agree(self.urls)
        newest = self._table.newest
        if newest is not None and newest.number == number:
            self.claim = None
        else:
            self.claim = Claim(number, server, self._shown_uri(), is_confirmed=True)
            text, urls = "%s: epoch %d at server %s is agreed on with %s", ", ".join(self.urls)
            known = about(physical_source=self._name)
            log.info(text, self._name, number, server, urls, extra=known)
        return Agreed(number, marks_of(tables, number))

    def _raise_for(self, found: Decision) -> None:
        """Raise the error of a decision not to read a server."""
        if found.conflict:
            self.claim = None
            raise SourceStoppedError(
                self._name,
                0 if self._table.newest is None else self._table.newest.first_scn,
                found.conflict,
            )
        if found.elsewhere:
            self.claim = None
            raise PeersElsewhereError(f"{self._name}: {found.elsewhere}", found.uri)
        if found.wait:
            if not found.keeps_claim:
                self.claim = None
            raise EpochWaitError(f"{self._name}: {found.wait}")

    def _ask_all(self, number: int, *, may_be_silent: bool) -> list[PeerTable]:
        self.look()
        silent = self.silent
        if silent and not may_be_silent:
            why = "; ".join(silent.values())
            raise EpochWaitError(f"{self._name}: waits for peers to agree on epoch {number}: {why}")
        return [table for table in self._tables() if table.url not in silent]

    def _tables(self) -> list[PeerTable]:
        with self._lock:
            return list(self._known.values())

    def _shown_uri(self) -> str:
        return without_password(self._uri())
