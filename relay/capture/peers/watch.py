"""Looks at the other relays of a physical source, and follows them to another server."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from databus.conf.addresses import without_password
from databus.daemon.log_setup import about
from databus.relay.capture.peers.agreement import Taken
from databus.relay.capture.servers import Servers

log = logging.getLogger(__name__)

EVERY_S = 1.0


class PeerWatch:
    """Asks the peers each second, on a thread of its own, until it is stopped.

    When they have gone to another server, this relay follows: `on_doubt` makes capture connect
    again. Without peers it does nothing.
    """

    def __init__(
        self,
        servers: Servers,
        on_doubt: Callable[[str], None],
        every_s: float = EVERY_S,
    ) -> None:
        self._servers, self._on_doubt, self._every_s = servers, on_doubt, every_s
        self._followed = -1  # the newest epoch to which it went, or tried to
        self._failure = ""
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Who does not answer, whom this relay cannot follow, and why it could not look."""
        peers = self._servers.peers
        if peers is None:
            return ()
        silent = (
            f"{problem}. Until it answers no epoch begins: capture would wait at another server"
            for problem in peers.silent.values()
        )
        ahead = peers.ahead
        behind = "" if ahead is None else self._behind(ahead)
        return (*silent, *filter(None, (behind, self._failure)))

    def start(self) -> None:
        """Start looking."""
        if self._servers.peers is None or self._thread is not None:
            return
        name = f"epoch-peers-{self._servers.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """End the thread; return whether it ended in time."""
        self._stopped.set()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def look(self) -> None:
        """Ask the peers once, and follow them."""
        peers = self._servers.peers
        if peers is None:
            return
        is_agreed = peers.is_agreed
        peers.look()
        if peers.conflict and is_agreed:
            self._on_doubt(peers.conflict)
            return
        ahead, newest = peers.ahead, self._servers.table.newest
        # A relay that is on its way to an epoch, or has none yet, asks by itself.
        if ahead is None or newest is None or peers.claim is not None:
            return
        if ahead.number <= self._followed:
            return
        uri = self._servers.own_uri(ahead.uri)
        if uri is None and ahead.server != newest.server:
            return
        self._followed = ahead.number
        text = f"follows {ahead.url}, which reads epoch {ahead.number} from {ahead.uri}"
        name = self._servers.name
        log.info("%s: %s", name, text, extra=about(physical_source=name))
        if uri is not None:
            self._servers.switch(uri)
        self._on_doubt(text)

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                self.look()
            except Exception as error:
                # A thread that ended would look like peers that stay where they are.
                name = self._servers.name
                log.exception("%s: looking at its peers failed", name)
                self._failure = f"its peers cannot be followed: {error!r}; see the log"
            else:
                self._failure = ""

    def _behind(self, ahead: Taken) -> str:
        known = ", ".join(without_password(uri) for uri in self._servers.all_uris)
        return (
            f"{ahead.url} reads epoch {ahead.number} of this source from server {ahead.server} at "
            f"{ahead.uri}, and this relay epoch {self._servers.epoch}: SCNs differ until it reads "
            f"that server, too. Its `uri` has {known}"
        )
