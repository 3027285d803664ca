"""How Canal's cluster clients find the relay that serves a destination: nodes in ZooKeeper.

Every relay of a destination has a node in its `cluster`. The one that has made the ephemeral node
`running` serves it. All of them look once a second; when it is gone, one of the others makes it.
One that cannot reach ZooKeeper for nearly as long as its session lasts serves no more: another
relay may have followed it. A cursor that it writes all the same is refused (`zookeeper_cursors`).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from databus.leases.errors import LeaseError
from databus.relay.serving.canal.consuming.zookeeper_nodes import CanalNodes, destination_path

log = logging.getLogger(__name__)

EVERY_S = 1.0
LOST_AFTER_S = 7.0  # the session lasts 10 s


class Running(NamedTuple):
    """Whether this relay serves a destination, and otherwise the address of the one that does."""

    is_here: bool
    elsewhere: str = ""


class ClusterNodes:
    """The nodes of one relay; looks at them on a thread until `stop`."""

    def __init__(
        self,
        nodes: CanalNodes,
        address: str,
        destinations: Sequence[str],
        may_serve: Callable[[str], bool],
        on_change: Callable[[str, Running], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`may_serve` and `on_change` are called on the thread, for each destination."""
        self.problem = ""
        """Why ZooKeeper cannot be asked now."""
        self._nodes, self._address, self._destinations = nodes, address, destinations
        self._may_serve, self._on_change, self._clock_s = may_serve, on_change, clock_s
        self._told: dict[str, Running] = {}
        self._seen_s = clock_s()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="canal-cluster", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Leave, so that another relay serves the destinations at once. Idempotent."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def look(self) -> None:
        """Look at all destinations once, and tell what has changed."""
        try:
            self._stand_in(f"cluster/{self._address}")
            for destination in self._destinations:
                self._tell(destination, self._look_at(destination))
        except LeaseError as error:
            self._note(str(error))
            if self._clock_s() - self._seen_s > LOST_AFTER_S:
                for destination in self._destinations:
                    self._tell(destination, Running(False))
        else:
            self._seen_s = self._clock_s()
            self._note("")

    def leave(self) -> None:
        """End the session, and with it all nodes of this relay."""
        try:
            for destination in self._destinations:
                if self._told.get(destination, Running(False)).is_here:
                    self._nodes.delete(f"{destination_path(destination)}/running")
        except LeaseError as error:
            log.warning("canal: the nodes in ZooKeeper run out by themselves: %s", error)
        self._nodes.close()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.look()
            except Exception as error:
                # A thread that ended would leave a relay that looks as if it stood by.
                log.exception("canal: looking at ZooKeeper")
                self._note(repr(error))
            self._ended.wait(EVERY_S)
        self.leave()

    def _look_at(self, destination: str) -> Running:
        path = destination_path(destination)
        # Before any client is made: its constructor fails without that node.
        self._nodes.create(f"{path}/cluster")
        self._stand_in(f"{path}/cluster/{self._address}")
        running = f"{path}/running"
        found = self._nodes.get(running)
        if found is None:
            if not self._may_serve(destination) or self._ended.is_set():
                return Running(False)
            self._nodes.create(running, self._payload(), ephemeral=True)
            found = self._nodes.get(running)
            if found is None:
                return Running(False)
        data, stat = found
        if stat.ephemeralOwner == self._nodes.session_id:
            return Running(True)
        return Running(False, _address_in(data))

    def _stand_in(self, path: str) -> None:
        """Make an ephemeral node, unless it is there: one of a former process goes by itself."""
        if self._nodes.get(path) is None:
            self._nodes.create(path, ephemeral=True)

    def _payload(self) -> bytes:
        return json.dumps({"active": True, "address": self._address}).encode()

    def _tell(self, destination: str, running: Running) -> None:
        if self._told.get(destination) != running:
            self._told[destination] = running
            self._on_change(destination, running)

    def _note(self, problem: str) -> None:
        if problem and not self.problem:
            log.warning("canal: %s; trying again", problem)
        self.problem = problem


def _address_in(data: bytes) -> str:
    try:
        return str(json.loads(data)["address"])
    except (ValueError, KeyError, TypeError):
        return ""
