"""Dead letters, written to their sink again, while no process runs it.

A letter is written only if nothing newer of its row was: the sink has noted that in the file. One
that is written leaves the file; one that fails stays, with the new error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from databus.client.sinks.contract import ChangeOp, Opening, Position, Sink
from databus.client.sinks.errors import SinkUnavailableError
from databus.client.sinks.running.dead_letters import NEWER, Line, Place, change_of, lines_of
from databus.client.sinks.running.plan import SinkPlan
from databus.client.sinks.serving.positions import PositionFile
from databus.daemon.files import replace_file
from databus.schemas.errors import CheckpointError

_LAST = 1 << 62  # index of a page's row, which has all changes up to its SCN


@dataclass
class Replayed:
    """What became of the letters of a sink; `left` were not tried, for a `problem`."""

    written: list[Line] = field(default_factory=list)
    superseded: list[Line] = field(default_factory=list)
    failed: list[tuple[Line, str]] = field(default_factory=list)
    left: list[Line] = field(default_factory=list)
    problem: str = ""


def replay(
    plan: SinkPlan, positions: PositionFile, *, forgets_superseded: bool = False
) -> Replayed:
    """Write the dead letters of a sink in the order of the log, and take those out of the file.

    Letters that something newer supersedes are not written, and go only if they are to be
    forgotten. The caller holds the positions. Raises CheckpointError for a file that cannot be
    used.
    """
    found = Replayed()
    file = plan.dead_letters
    lines = [] if file is None else list(lines_of(file.path))
    own = [line for line in lines if line.values["sink"] == plan.name]
    newest = _newest_written(own)
    for line in sorted((one for one in own if not one.is_note), key=_order):
        is_superseded = newest.get(line.row, line.place) > line.place
        (found.superseded if is_superseded else found.left).append(line)
    try:
        for physical, letters in groupby(
            list(found.left), lambda one: one.values["physicalSource"]
        ):
            if not found.problem:
                _Replay(plan, positions, physical, found).write(list(letters))
    finally:
        gone = found.written + (found.superseded if forgets_superseded else [])
        if file is not None and (gone or found.failed):
            kept = b"".join(_kept(lines, own, gone, dict(_again(found.failed))))
            try:
                replace_file(file.path, kept)
            except OSError as error:
                raise CheckpointError(
                    f"{file.path} cannot be written: {error}; {len(found.written)} rows are in the "
                    "target, and are written again next time"
                ) from error
    return found


class _Replay:
    """Writes letters of one physical source, each with a flush of its own."""

    def __init__(
        self, plan: SinkPlan, positions: PositionFile, physical: str, found: Replayed
    ) -> None:
        self._plan, self._found = plan, found
        stored = positions.load(plan.name, physical)
        position = None if stored is None else Position(physical, stored.checkpoint)
        self._opening = Opening(plan.name, physical, position)
        self._sink: Sink | None = None
        self._own: Position | None = None

    def write(self, letters: Sequence[Line]) -> None:
        """Write them, until the target cannot be reached."""
        done: set[str] = set()
        try:
            for line in letters:
                # After a crash of the sink a row may have two letters.
                if line.values["id"] in done or self._is_written(line):
                    done.add(line.values["id"])
                    self._found.written.append(line)
                self._found.left.remove(line)
        except SinkUnavailableError as error:
            self._found.problem = f"the target cannot be reached: {error}"
        finally:
            self._close()

    def _is_written(self, line: Line) -> bool:
        try:
            change = change_of(line.values)
            sink = self._open()
            # A target that keeps its position stays where it is.
            sink.write([replace(change, position=self._own)])
            sink.flush()
        except SinkUnavailableError:
            raise
        except Exception as error:
            self._close()
            self._found.failed.append((line, f"{type(error).__name__}: {error}"))
            return False
        return True

    def _open(self) -> Sink:
        if self._sink is None:
            sink = self._plan.make()
            try:
                self._own = sink.open(self._opening)
            except BaseException:
                with suppress(Exception):
                    sink.close()
                raise
            self._sink = sink
        return self._sink

    def _close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            with suppress(Exception):
                sink.close()


def _order(line: Line) -> tuple[str, Place, bool]:
    """Return what sorts letters: a change of the key is a delete, and an insert after it."""
    values = line.values
    return values["physicalSource"], line.place, values["op"] != ChangeOp.DELETE


def _newest_written(own: Sequence[Line]) -> Mapping[tuple[str, str], Place]:
    """Return the newest change of each row that the sink has written after a letter of it."""
    aside = {line.values["id"] for line in own if not line.is_note}
    newest: dict[tuple[str, str], Place] = {}
    for line in own:
        if line.is_note and line.values["id"] not in aside:
            is_page = line.values[NEWER] == ChangeOp.SNAPSHOT
            place = (line.place[0], _LAST) if is_page else line.place
            newest[line.row] = max(place, newest.get(line.row, place))
    return newest


def _again(failed: Sequence[tuple[Line, str]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the line of each letter that failed again, and what replaces it."""
    for line, problem in failed:
        attempts = int(line.values.get("attempts", 0)) + 1
        new: dict[str, Any] = {**line.values, "at": time.time(), "error": problem}
        text = json.dumps(new | {"attempts": attempts, "trace": ""}, ensure_ascii=False)
        yield line.data, text.encode() + b"\n"


def _kept(
    lines: Sequence[Line], own: Sequence[Line], gone: Sequence[Line], changed: Mapping[bytes, bytes]
) -> Iterator[bytes]:
    """Yield the lines that stay: notes as long as their row has a letter."""
    leaving = {line.data for line in gone}
    rows = {line.row for line in own if not line.is_note and line.data not in leaving}
    mine = {line.data for line in own}
    for line in lines:
        if line.data in leaving or (line.is_note and line.data in mine and line.row not in rows):
            continue
        yield changed.get(line.data, line.data)
