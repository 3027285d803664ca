"""Makes isolated sinks of one kind, and counts how their processes end."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from databus.client.sinks.contract import Sink
from databus.client.sinks.errors import SinkError
from databus.client.sinks.isolated.answers import Facts
from databus.client.sinks.isolated.child import SinkChild
from databus.client.sinks.isolated.ends import End, Limits
from databus.client.sinks.isolated.sink import IsolatedSink
from databus.client.sinks.isolated.worker import Task
from databus.conf.sink_settings import SinkSettings
from databus.schemas.errors import SettingsError

log = logging.getLogger(__name__)

_SEND_S = 10.0


class Ends(NamedTuple):
    """How processes of a sink have ended though they should not: by reason, and the last one."""

    counts: Mapping[str, int]
    last: str  # "" = none has


class IsolatedMaker:
    """Makes a sink for each lane. Loads none of its code into this process. Thread-safe."""

    def __init__(
        self,
        settings: SinkSettings,
        file: Path | None = None,
        hidden: Collection[str] = (),
    ) -> None:
        """`hidden` are names of environment variables that the sink does not get.

        Raises SettingsError on a system without what it needs.
        """
        if sys.platform != "linux":
            raise SettingsError("isolate = true needs Linux: set isolate = false")
        limits = settings.limits
        self._limits = Limits(limits.memory_bytes, limits.cpu_s, limits.call_s, limits.processes)
        self._settings, self._file, self._hidden = settings, file, frozenset(hidden)
        self._lock = threading.Lock()
        self._facts: Facts | None = None
        self._counts: Counter[str] = Counter()
        self._last = ""

    def __call__(self) -> Sink:
        """Return a sink; its process starts when it is opened."""
        return self._made()

    @property
    def keeps_position(self) -> bool:
        """Whether the target keeps the position; raises SettingsError if that is not found out."""
        return self.facts().keeps_position

    @property
    def has_position_per_source(self) -> bool:
        """Whether it keeps one of each physical source; raises SettingsError."""
        return self.facts().has_position_per_source

    def facts(self) -> Facts:
        """Load the class in a process, and return what it says; raise SettingsError."""
        with self._lock:
            known = self._facts
        if known is None:
            sink = self._made()
            try:
                known = sink.facts()
            except SinkError as error:
                raise SettingsError(str(error)) from error
            finally:
                sink.close()
            with self._lock:
                self._facts = known
        return known

    @property
    def ends(self) -> Ends:
        """How processes have ended."""
        with self._lock:
            return Ends(dict(self._counts), self._last)

    def _made(self) -> IsolatedSink:
        return IsolatedSink(self._start, self._limits, self._ended)

    def _start(self) -> SinkChild:
        environment = {name: one for name, one in os.environ.items() if name not in self._hidden}
        child = SinkChild(self._settings.name, self._limits, environment)
        try:
            child.send(self._task(), end_s=time.monotonic() + _SEND_S)
        except BaseException:
            child.finish()
            raise
        return child

    def _task(self) -> Task:
        file = None if self._file is None else str(self._file)
        level = log.getEffectiveLevel()
        return Task(self._settings.kind, dict(self._settings.options), file, list(sys.path), level)

    def _ended(self, end: End) -> None:
        with self._lock:
            self._counts[end.reason.value] += 1
            self._last = end.text(self._limits)
