"""All sinks of a settings file in one process: `databus sink run`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from databus.client.sinks.loading import sink_maker
from databus.client.sinks.running.feed import OnAlert, SinkState
from databus.client.sinks.running.plan import SinkPlan, make_plan
from databus.client.sinks.serving.positions import PositionFile, hold
from databus.client.sinks.serving.running_sink import RunningSink
from databus.conf.sink_settings import SinksSettings
from databus.daemon.files import make_folder
from databus.schemas.errors import SettingsError

log = logging.getLogger(__name__)

_LOOK_S = 0.1
_OVER = frozenset({SinkState.DONE, SinkState.ENDED, SinkState.STOPPED})


class SinkProcess:
    """The sinks of a file, each with its own client: none waits for another."""

    def __init__(
        self,
        settings: SinksSettings,
        plans: Sequence[SinkPlan],
        on_alert: OnAlert | None = None,
    ) -> None:
        """Take the positions; raises SettingsError, and CheckpointError if they are in use."""
        make_folder(settings.data_dir)
        self._let_go: Callable[[], None] = hold(settings.data_dir)
        try:
            self.positions = PositionFile(settings.data_dir)
            self.sinks = [RunningSink(plan, settings, self.positions, on_alert) for plan in plans]
        except BaseException:
            self._let_go()
            raise
        self._asked = threading.Event()

    def run(self) -> bool:
        """Run until `end`, or until no sink goes on; return whether none was stopped by an error.

        Idle sinks go on: only `until` and errors end one.
        """
        try:
            for sink in self.sinks:
                sink.start()
            while not self._asked.wait(_LOOK_S):
                if all(sink.state in _OVER for sink in self.sinks):
                    break
            is_well = all(sink.state is not SinkState.STOPPED for sink in self.sinks)
            for sink in self.sinks:
                if sink.state is SinkState.DONE:
                    log.info("%s: done", sink.plan.name)
            return is_well
        finally:
            self.stop()

    def end(self) -> None:
        """Ask `run` to end. Thread-safe, also in a signal handler."""
        self._asked.set()

    def stop(self) -> None:
        """End all sinks at the same time, and let the positions go."""
        threads = [threading.Thread(target=sink.stop) for sink in self.sinks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._let_go()


def make_plans(
    settings: SinksSettings, file: Path | None = None, only: Sequence[str] = ()
) -> list[SinkPlan]:
    """Return the plans of the sinks, or of some of them; connects to nothing.

    Raises SettingsError for everything that a sink could not start with.
    """
    known = [sink.name for sink in settings.sinks]
    for name in only:
        if name not in known:
            raise SettingsError(f"there is no sink {name}; there are {', '.join(known)}")
    plans = []
    for sink in settings.sinks:
        try:
            make = sink_maker(sink.kind, sink.options, file)
            letters = settings.data_dir / f"{sink.name}.dead-letters.jsonl"
            plan = make_plan(sink, make, letters)
        except SettingsError as error:
            raise SettingsError(f"sink {sink.name}: {error}") from error
        if not only or sink.name in only:
            plans.append(plan)
    return plans
