"""A small consumer that walks through a whole bootstrap, in either order."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from databus.schemas.avro_rows import row_codec
from databus.schemas.checkpoint import Checkpoint, ConsumptionMode
from databus.schemas.event.control import checkpoint_of
from databus.schemas.event.event import Event, Opcode
from databus.schemas.stream.stream_reader import walk
from tests.bootstrap.filled import TEXTS, is_truncate

BATCH_BYTES = 1500  # a few rows a page


class Answered(Protocol):
    """What a server answered."""

    status: int
    headers: Any
    body: bytes


Ask = Callable[[str, Mapping[str, Any]], Answered]


def snapshot_at(source: str, start_scn: int, offset: int = 0, since_scn: int = 0) -> Checkpoint:
    """Return the checkpoint of a consumer in a snapshot."""
    return Checkpoint(
        ConsumptionMode.SNAPSHOT,
        snapshot_source=source,
        snapshot_offset=offset,
        bootstrap_since_scn=since_scn,
        bootstrap_start_scn=start_scn,
    )


def catch_up_at(scn: int, target_scn: int, offset: int = -1, start_scn: int = 0) -> Checkpoint:
    """Return the checkpoint of a consumer in a catch-up."""
    return Checkpoint(
        ConsumptionMode.CATCHUP,
        scn,
        offset,
        bootstrap_start_scn=start_scn or scn,
        bootstrap_target_scn=target_scn,
    )


def split(body: bytes) -> tuple[list[Event], Checkpoint]:
    """Return a page's events, and the checkpoint behind them."""
    *events, closing = walk(body)
    assert not any(event.is_control for event in events)
    return events, checkpoint_of(closing)


def row_of(event: Event) -> dict[str, Any]:
    """Return the row of an event of one of the hand-filled tables."""
    return row_codec(TEXTS[event.src_id]).decode(event.value)


@dataclass
class Walker:
    """Walks; what it ends with is in `rows`, by (src_id, key), and in `checkpoint`.

    `before_page` is called before each page, for writers to do their worst.
    """

    ask: Ask
    sources: Mapping[str, int]
    since_scn: int = 0
    batch_bytes: int = BATCH_BYTES
    before_page: Callable[[int], object] = lambda number: None
    pages: int = 0
    events: int = 0
    rows: dict[tuple[int, int | bytes], str] = field(default_factory=dict)
    scns: dict[tuple[int, int | bytes], int] = field(default_factory=dict)
    emptied_scns: dict[int, int] = field(default_factory=dict)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    extra: dict[str, Any] = field(default_factory=dict)

    def linear(self) -> None:
        """All snapshots, then one catch-up of all."""
        start_scn = self.start()
        for source in self.sources:
            self.snapshot(source, start_scn)
        self.catch_up(list(self.sources), start_scn, self.target(list(self.sources)[-1]))

    def classic(self) -> None:
        """After each snapshot a catch-up of all sources so far, from the start SCN on."""
        start_scn = self.start()
        for number, source in enumerate(self.sources, 1):
            self.snapshot(source, start_scn)
            self.catch_up(list(self.sources)[:number], start_scn, self.target(source))

    def start(self) -> int:
        checkpoint = Checkpoint(ConsumptionMode.SNAPSHOT, bootstrap_since_scn=self.since_scn)
        answer = self.good("/startSCN", sources=",".join(self.sources), checkPoint=checkpoint)
        self.extra = {"bootstrap_store_id": answer.headers["x-databus-store"]}
        return int(json.loads(answer.body))

    def target(self, source: str) -> int:
        return int(json.loads(self.good("/targetSCN", source=source).body))

    def snapshot(self, source: str, start_scn: int) -> None:
        at = snapshot_at(source, start_scn, since_scn=self.since_scn)
        after = self.read_phase(replace(at, extra=self.extra), [self.sources[source]])
        assert after.is_snapshot_done

    def catch_up(self, sources: list[str], since_scn: int, target_scn: int) -> None:
        at = catch_up_at(since_scn, target_scn)
        # Read again from the start SCN in the classic order: what is older than what
        # is there comes again, and is no news.
        self.scns.clear()
        self.emptied_scns.clear()
        after = self.read_phase(at, [self.sources[source] for source in sources])
        assert (after.window_scn, after.window_offset) == (target_scn, -1)

    def read_phase(self, at: Checkpoint, src_ids: list[int]) -> Checkpoint:
        is_over = False
        while not is_over:
            self.pages += 1
            self.before_page(self.pages)
            answer = self.good(
                "/bootstrap",
                sources=",".join(map(str, src_ids)),
                checkPoint=at,
                output="binary",
                batchSize=self.batch_bytes,
                maxev=2,
                truncate="true",
            )
            assert len(answer.body) <= self.batch_bytes
            events, at = split(answer.body)
            for event in events:
                self.take(event)
            is_over = answer.headers.get("PhaseCompleted") == "TRUE"
            assert events or is_over
        self.checkpoint = at
        return at

    def take(self, event: Event) -> None:
        self.events += 1
        if is_truncate(event):
            self.empty(event)
            return
        place = (event.src_id, event.key)
        assert event.scn >= self.scns.get(place, 0), "older after newer"
        assert event.scn >= self.emptied_scns.get(event.src_id, 0), "from before a TRUNCATE"
        self.scns[place] = event.scn
        if event.opcode is Opcode.DELETE:
            self.rows.pop(place, None)
        else:
            self.rows[place] = row_of(event)["name"]

    def empty(self, event: Event) -> None:
        """Take a TRUNCATE."""
        src_id = event.src_id
        newest = max((scn for place, scn in self.scns.items() if place[0] == src_id), default=0)
        assert event.scn >= newest, "a TRUNCATE after what came after it"
        self.emptied_scns[src_id] = event.scn
        self.rows = {place: name for place, name in self.rows.items() if place[0] != src_id}

    def good(self, path: str, **parameters: Any) -> Answered:
        texts = {
            name: value.to_json() if isinstance(value, Checkpoint) else value
            for name, value in parameters.items()
        }
        answer = self.ask(path, texts)
        assert answer.status == 200, answer.body
        return answer
