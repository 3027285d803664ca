"""One physical source of a running relay: its ring, its capture and the access for readers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from databus.conf.named_places import BinlogPlace, NamedPlace
from databus.conf.settings import PhysicalSourceSettings
from databus.relay.capture.capture import Capture
from databus.relay.capture.log_monitor import LogMonitor
from databus.relay.capture.max_scn import MaxScnStore
from databus.relay.capture.notifier import Notifier
from databus.relay.capture.peers.watch import PeerWatch
from databus.relay.capture.status import RESTING, CaptureStatus, State
from databus.relay.capture.window_encoder import WindowEncoder
from databus.relay.captured_spans import CapturedSpans
from databus.relay.catch_up.catch_ups import CatchUps
from databus.relay.catch_up.reader import CatchUpReader
from databus.relay.epoch_spans import EpochSpans
from databus.relay.log.history import HistoryReader
from databus.relay.log.recorder import LogRecorder
from databus.relay.log.status import RelayLogStatus
from databus.relay.monitoring.clients import ClientTable, Stream
from databus.relay.ring.event_selector import WINDOW_DONE
from databus.relay.ring.reader import RingReader
from databus.relay.ring.ring import Ring
from databus.relay.ring.selection import Selection
from databus.relay.source_status import RingStatus, SourceStatus
from databus.relay.sources.epochs import epoch_at
from databus.relay.sources.log_status import LogStatus
from databus.relay.span import Spans
from databus.schemas.errors import (
    DamagedWindowsError,
    RelayLogError,
    RingError,
    ScnNotFoundError,
    UnusableSourceError,
)


@dataclass(frozen=True, slots=True)
class PhysicalSource:
    """The parts of one physical source."""

    settings: PhysicalSourceSettings
    ring: Ring
    reader: RingReader
    max_scn: MaxScnStore
    capture: Capture
    log_monitor: LogMonitor
    notifier: Notifier
    spans: CapturedSpans
    recorder: LogRecorder | None  # of the relay log; None without one
    history: HistoryReader | RingReader  # ring and log as one, on the loop's thread
    catch_ups: CatchUps | None = None  # None where its log cannot be read a second time
    peers: PeerWatch | None = None  # None without other relays of the source
    encoder: WindowEncoder | None = None  # None in tests without capture

    @property
    def name(self) -> str:
        """Its name in the settings."""
        return self.settings.name

    def state(self) -> State:
        """Return the state of capture."""
        return self.capture.status.state

    def reader_for(self, selection: Selection) -> HistoryReader | RingReader | CatchUpReader:
        """Return the reader of the rung that has what comes after a place.

        Raises ScnNotFoundError if the source's own log is known not to have it either, and
        UnusableSourceError as `check_served`.
        """
        self.check_served()
        if self.catch_ups is None:
            return self.history
        found = self.catch_ups.reader_for(selection)
        return self.history if found is None else found

    def note_damage(self, error: DamagedWindowsError, selection: Selection) -> None:
        """Let another rung have what cannot be read for a selection."""
        if self.catch_ups is not None:
            self.catch_ups.note_damage(error, selection.checkpoint)

    def check_served(self) -> None:
        """Raise UnusableSourceError if SCNs here may differ from those of other relays."""
        peers = self.capture.servers.peers
        if peers is not None and not peers.is_agreed:
            raise UnusableSourceError(self.name, RingError(peers.problem))

    def spans_of(self, reader: HistoryReader | RingReader | CatchUpReader) -> Spans:
        """Return the spans of its sources, as they are for a reader."""
        if isinstance(reader, CatchUpReader):
            return reader.spans
        return EpochSpans(self.spans, self.capture.servers, self.history)

    def start(self) -> None:
        """Start capturing, and what looks after it."""
        if self.recorder is not None:
            self.recorder.start()
        self.capture.start()
        self.log_monitor.start()
        if self.peers is not None:
            self.peers.start()

    def stop_beside(self, timeout_s: float) -> bool:
        """Stop what works beside capture, which has ended; return whether it ended in time."""
        end = time.monotonic() + timeout_s

        def left_s() -> float:
            return max(0.0, end - time.monotonic())

        ended = [self.recorder is None or self.recorder.stop(left_s())]
        self.log_monitor.stop(left_s())
        ended.append(self.peers is None or self.peers.stop(left_s()))
        ended.append(self.catch_ups is None or self.catch_ups.close(left_s()))
        return all(ended)

    def epoch_of(self, place: NamedPlace) -> int:
        """Return the epoch whose log has a place in a binlog; the newest for others."""
        servers = self.capture.servers
        if isinstance(place, BinlogPlace):
            at = place.file_number, place.offset
            found = epoch_at(servers.table.epochs, place.file, at, self.ring.max_scn)
            if found is not None:
                return found.number
        return servers.epoch

    def status(
        self, damage: str, readers: Callable[[], Sequence[str]], *, is_draining: bool
    ) -> SourceStatus:
        """Return the current status; the relay supplies the arguments."""
        capture = self.capture.status
        in_error = capture.state is State.ERROR
        return SourceStatus(
            name=self.name,
            capture=capture,
            ring=_ring_status(self.reader, damage),
            log=self._log_status(capture),
            relay_log=self._relay_log_status(),
            held_requests=self.notifier.waiting,
            waiting_consumers=tuple(readers()) if in_error else (),
            is_draining=is_draining,
            stops=tuple(sorted(self.spans.stops.values())),
            catch_ups=() if self.catch_ups is None else self.catch_ups.statuses(),
            catch_up_failures=() if self.catch_ups is None else self.catch_ups.failures(),
            peer_warnings=() if self.peers is None else self.peers.warnings,
            role=None if self.capture.servers.role is None else self.capture.servers.role.status,
        )

    def _relay_log_status(self) -> RelayLogStatus | None:
        if self.recorder is None or not isinstance(self.history, HistoryReader):
            return None
        return replace(self.recorder.status, read_bytes=self.history.read_bytes)

    def place_kept(self, stream: Stream, scn: int, offset: int = WINDOW_DONE) -> bool:
        """Set a client's position to what comes after its checkpoint; False if nothing tells it."""
        stream.scn = scn if offset == WINDOW_DONE else scn - 1
        stream.position, stream.is_gone, stream.is_in_catch_up = None, False, False
        try:
            stream.position = self.history.find(scn, offset)
        except ScnNotFoundError:
            again = self.catch_ups
            stream.is_in_catch_up = again is not None and again.may_have(scn)
            stream.is_gone = not stream.is_in_catch_up
        except (RingError, RelayLogError):
            return False
        return True

    def tick(self, clients: ClientTable) -> None:
        """Close what nobody reads any more, and note what is read; once a second, on the loop."""
        if isinstance(self.history, HistoryReader):
            self.history.rest()
        if self.catch_ups is not None:
            self.catch_ups.tick()
        if self.recorder is not None and self.recorder.hold.names:
            self.recorder.hold.note(clients.kept_scns(self.name))

    def _log_status(self, capture: CaptureStatus) -> LogStatus:
        """Return the log status, without a lag that may be outdated.

        The lag is unknown while the database is unreachable, and a probe from before a
        pause or an error does not cover what was committed since.
        """
        found = self.log_monitor.status
        was_probed = self.log_monitor.probed_at >= (capture.since or math.inf)
        if capture.is_connected or (capture.state in RESTING and was_probed):
            return found
        return replace(found, behind_bytes=None, behind_s=None)


def _ring_status(reader: RingReader, damage: str) -> RingStatus:
    max_scn, tail = reader.newest()
    extent = reader.extent()
    return RingStatus(
        capacity_bytes=reader.capacity_bytes,
        head=extent.head,
        tail=tail,
        min_scn=extent.min_scn,
        max_scn=max_scn,
        prev_scn=extent.prev_scn,
        oldest_ns=reader.first_timestamp_ns,
        newest_ns=reader.latest_timestamp_ns,
        damage=damage,
    )
