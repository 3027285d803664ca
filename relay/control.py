"""Admin actions on the capture of a physical source: pause, resume, drain, switch, restart.

A pause takes effect at the end of a window, as readers never see half a window. A drain is
a pause that also reports when all readers have read what there is. A restart discards the
ring: clients whose position lies before its new start get ScnNotFound and bootstrap, so
no client misses changes unnoticed.

The methods block for up to some seconds: never call them on the event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from threading import Lock

from databus.conf.addresses import without_password
from databus.conf.named_places import NamedPlace, ScnPlace
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.capture.capture import Capture
from databus.relay.capture.status import State
from databus.relay.physical_source import PhysicalSource
from databus.relay.sources.kind import RepairRequest, repair_history
from databus.relay.sources.source import Source
from databus.schemas.errors import ControlRefusedError, RingError, SettingsError, SourceError

log = logging.getLogger(__name__)

STOP_S = 10.0  # a read of a source takes about a second, a connection more
SHUTDOWN_S = 5.0
REST_S = 2.0  # the current read ends within one second
_POLL_S = 0.005


class Control:
    """Controls the physical sources of one relay. Thread-safe.

    `open_source` opens another reader of a source's database; `forget_ring` is called with
    the name of a physical source whose ring was emptied. Sources keep their files in `data_dir`.
    """

    def __init__(
        self,
        open_source: Callable[[PhysicalSourceSettings], Source],
        forget_ring: Callable[[str], None],
        data_dir: Path,
    ) -> None:
        self._data_dir = data_dir
        self._open_source = open_source
        self._forget_ring = forget_ring
        self._draining: set[str] = set()
        self._locks: dict[str, Lock] = {}

    def is_draining(self, name: str) -> bool:
        """Return whether a physical source is paused by a drain."""
        return name in self._draining

    def pause(self, source: PhysicalSource) -> None:
        """Pause capture; this cancels a drain."""
        self._draining.discard(source.name)
        source.capture.pause(REST_S)

    def drain(self, source: PhysicalSource) -> None:
        """Pause capture until `resume`, and report which clients have not read everything."""
        source.capture.pause(REST_S)
        self._draining.add(source.name)

    def resume(self, source: PhysicalSource) -> None:
        """Continue capturing after a pause, a drain, a stop or an error."""
        with self._alone(source):
            self._draining.discard(source.name)
            source.capture.start()
            _wait_for(source.capture, State.RUNNING)

    def stop(self, source: PhysicalSource) -> None:
        """Stop capture until `resume`."""
        source.capture.stop(SHUTDOWN_S)

    def switch(self, source: PhysicalSource, uri: str) -> None:
        """Read another of the source's servers from now on, if it has all that was delivered.

        The capture itself finds that out; if not, it goes back as for any server that is refused.
        Raises ControlRefusedError, and changes nothing, for a server that is not in the settings.
        """
        if uri not in source.settings.uris:
            known = ", ".join(without_password(one) for one in source.settings.uris)
            raise ControlRefusedError(
                f"{source.name}: {without_password(uri)} is not in its `uri`, which has {known}"
            )
        _refuse_standby(source)
        with self._alone(source), self._resting(source):
            source.capture.servers.switch(uri)

    def repair(
        self, source: PhysicalSource, name: str, scn: int | None, create_table: str | None
    ) -> None:
        """Take a source that was stopped alone in again, from the newest window on.

        What came since its stop is read from the source's log, by those who ask for it. With an
        SCN, the table's definition from there on is set first (`databus schema repair`). Capture of
        the others rests only for the change. Raises ControlRefusedError, and changes nothing, if
        the source is not stopped, or its log cannot be read a second time.
        """
        _refuse_standby(source)
        with self._alone(source), ExitStack() as rest:
            if name not in source.spans.stops:
                raise ControlRefusedError(f"{source.name}: source {name} is not stopped alone")
            if source.catch_ups is None or not source.settings.catch_ups:
                raise ControlRefusedError(
                    f"{source.name}: its log is not read a second time (catch_ups), so the rows "
                    "since the stop would be missing; restart capture from there"
                )

            def take_turn() -> None:
                rest.enter_context(self._resting(source))

            if scn is None:
                take_turn()
            else:
                settings = source.capture.servers.current
                request = RepairRequest(name, scn, create_table, take_turn)
                try:
                    repaired = repair_history(settings, self._data_dir, request)
                except (SourceError, SettingsError) as error:
                    raise ControlRefusedError(f"{source.name}: {error}") from error
                if repaired.doubt:
                    log.warning("%s: %s: %s", source.name, name, repaired.doubt)
            source.spans.take_in(name)

    @contextmanager
    def resting(self, source: PhysicalSource) -> Iterator[None]:
        """Let capture of a source rest for a change of what it captures; as `repair` does."""
        with self._alone(source), self._resting(source):
            yield

    @contextmanager
    def ending(self, source: PhysicalSource) -> Iterator[None]:
        """Stop capture of a source for good; it goes on if what is done meanwhile fails."""
        with self._alone(source):
            before = source.capture.status.state
            self._stop_or_refuse(source, before)
            try:
                yield
            except BaseException:
                _put_back(source.capture, before)
                raise

    @contextmanager
    def _resting(self, source: PhysicalSource) -> Iterator[None]:
        """Stop capture meanwhile; raise ControlRefusedError if it does not stop."""
        before = source.capture.status.state
        self._stop_or_refuse(source, before)
        try:
            yield
        finally:
            _put_back(source.capture, before)

    def restart(self, source: PhysicalSource, place: NamedPlace) -> None:
        """Empty the ring and capture from a place in the source's log on.

        A place other than an SCN is looked for first, which takes as long as the log is read,
        while capture goes on. Raises ControlRefusedError, and changes nothing, if the source
        does not have the changes after the place, or cannot be reached.
        """
        with self._alone(source):
            if isinstance(place, ScnPlace):
                _refuse_earlier_epoch(source, place.scn)
            self._restart(source, self._scn_at(source, place))

    @contextmanager
    def _alone(self, source: PhysicalSource) -> Iterator[None]:
        """Let nobody else start capture meanwhile; raise ControlRefusedError if somebody may."""
        lock = self._locks.setdefault(source.name, Lock())
        if not lock.acquire(blocking=False):
            raise ControlRefusedError(
                f"{source.name}: a restart, a repair or a switch is in progress; wait for its end"
            )
        role = source.capture.servers.role
        try:
            # Another relay must not take over because capture rests meanwhile.
            with nullcontext() if role is None else role.kept():
                yield
        finally:
            lock.release()

    def _restart(self, source: PhysicalSource, scn: int) -> None:
        capture = source.capture
        _refuse_without_lease(source)
        before = capture.status.state
        self._stop_or_refuse(source, before)
        try:
            self._check(source, scn)
            source.spans.lower(scn, source.ring.max_scn)
            source.ring.restart_after(scn)
            # If the process is killed before this line, capture begins after the older of
            # the two SCNs and drops the windows before the ring's start.
            source.max_scn.save(scn, 0)
            source.spans.clear()
            self._forget_ring(source.name)
        except BaseException:
            _put_back(capture, before)
            raise
        self._draining.discard(source.name)
        capture.start()
        _wait_for(capture, State.RUNNING)

    def _stop_or_refuse(self, source: PhysicalSource, before: State) -> None:
        if not source.capture.stop(STOP_S):
            _put_back(source.capture, before)
            raise ControlRefusedError(
                f"{source.name}: capture did not stop within {STOP_S:.0f} s, because its source "
                "does not answer; nothing was changed, try again"
            )

    def _scn_at(self, source: PhysicalSource, place: NamedPlace) -> int:
        """Return the SCN of a place in the source's log; raise ControlRefusedError."""
        with self._asking(source, f"at {place}") as asked:
            return asked.scn_at(place)

    def _check(self, source: PhysicalSource, scn: int) -> None:
        """Read from the source after `scn` once; raise ControlRefusedError if that fails."""
        with self._asking(source, f"after scn {scn}") as asked:
            asked.open(scn, None)
            asked.read()  # some sources detect a missing position only here

    @contextmanager
    def _asking(self, source: PhysicalSource, where: str) -> Iterator[Source]:
        """Yield another reader of a source's database; raise ControlRefusedError for its errors."""
        try:
            with closing(self._open_source(source.capture.servers.current)) as asked:
                yield asked
        except (SourceError, RingError, SettingsError) as error:
            raise ControlRefusedError(
                f"{source.name} cannot start {where}; nothing was changed: {error}"
            ) from error


def _refuse_standby(source: PhysicalSource) -> None:
    """Raise ControlRefusedError if another relay captures: this is its to do."""
    upstream = None if source.capture.servers.role is None else source.capture.servers.role.upstream
    if upstream is not None:
        url = upstream.uri.removeprefix("databus+")
        raise ControlRefusedError(
            f"{source.name}: this relay stands by; nothing was changed. Relay {url} captures: "
            "give it the order"
        )


def _refuse_without_lease(source: PhysicalSource) -> None:
    """Raise ControlRefusedError if neither this relay captures nor it reads from the one that does.

    Its MaxSCN is at the coordinator then, and belongs to others.
    """
    role = source.capture.servers.role
    if role is not None and role.upstream is None and not role.is_active:
        raise ControlRefusedError(
            f"{source.name}: this relay does not have the lease of the source, for its capture "
            "rests, or the coordinator is away; nothing was changed. Resume its capture first"
        )


def _refuse_earlier_epoch(source: PhysicalSource, scn: int) -> None:
    """Raise ControlRefusedError for an SCN of a server that is not read any more.

    It means nothing in the log of the present one.
    """
    newest = source.capture.servers.newer_than(scn)
    if newest is not None:
        raise ControlRefusedError(
            f"{source.name}: scn {scn} is of a server before: since scn {newest.first_scn}, epoch "
            f"{newest.number}, {newest.uri} is read; nothing was changed. Restart at a place in "
            "that one's log: a later SCN, `gtid:…`, `time:…` or `earliest`"
        )


def _put_back(capture: Capture, before: State) -> None:
    """Return capture to its state before the stop."""
    if before is State.STOPPED:
        return
    capture.start()
    if before is State.PAUSED:
        capture.pause()
    _wait_for(capture, State.PAUSED if before is State.PAUSED else State.RUNNING)


def _wait_for(capture: Capture, state: State) -> None:
    """Wait a while for a state or an error, so that the answer shows the new state."""
    end = time.monotonic() + REST_S
    while time.monotonic() < end:
        if capture.wait_for(state, _POLL_S) or capture.status.state is State.ERROR:
            return
