"""All sinks of a settings file in one process: `databus sink run`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from databus.client.sinks.errors import UnknownSinkError
from databus.client.sinks.isolated.maker import IsolatedMaker
from databus.client.sinks.isolated.secret_variables import secret_variables
from databus.client.sinks.loading import MakeSink, own_places, sink_maker
from databus.client.sinks.reloading.requests import ReloadFile
from databus.client.sinks.running.feed import STOP_S, OnAlert, SinkState
from databus.client.sinks.running.plan import SinkPlan, make_plan
from databus.client.sinks.serving.pauses import PauseFile
from databus.client.sinks.serving.positions import PositionFile, hold
from databus.client.sinks.serving.running_sink import RunningSink
from databus.conf.sink_settings import SinksSettings
from databus.daemon.files import make_folder
from databus.schemas.errors import SettingsError

log = logging.getLogger(__name__)

_LOOK_S = 0.1


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
            self._pauses = PauseFile(settings.data_dir)
            reloads = ReloadFile(settings.data_dir)
            self.sinks = [
                RunningSink(
                    *(plan, settings, self.positions, reloads, on_alert),
                    is_paused=plan.name in self._pauses,
                )
                for plan in plans
            ]
        except BaseException:
            self._let_go()
            raise
        self._asked = threading.Event()
        self._is_closed = False

    def sink(self, name: str) -> RunningSink:
        """Return a sink; raise UnknownSinkError."""
        for one in self.sinks:
            if one.plan.name == name:
                return one
        names = ", ".join(one.plan.name for one in self.sinks)
        raise UnknownSinkError(f"this process runs no sink {name}; it runs {names}")

    def pause(self, name: str) -> None:
        """Pause a sink, also for later processes; raise UnknownSinkError and CheckpointError."""
        sink = self.sink(name)
        self._pauses.set(name, is_paused=True)
        sink.pause()

    def resume(self, name: str) -> None:
        """End a pause, also for later processes; raise UnknownSinkError and CheckpointError."""
        sink = self.sink(name)
        self._pauses.set(name, is_paused=False)
        sink.resume()

    def run(self) -> bool:
        """Run until `end`, or until no sink goes on; return whether none was stopped by an error.

        Idle sinks go on, and one that an error has stopped waits for `retry` or `skip`. But a sink
        with `until` is a job, and nobody waits beside it: an error ends it.
        """
        try:
            self.start()
            while not self._asked.wait(_LOOK_S):
                if all(map(_is_over, self.sinks)):
                    break
            is_well = all(sink.state is not SinkState.STOPPED for sink in self.sinks)
            for sink in self.sinks:
                if sink.state is SinkState.DONE:
                    log.info("%s: done", sink.plan.name)
            return is_well
        finally:
            self.close()

    def end(self) -> None:
        """Ask `run` to end. Thread-safe, also in a signal handler."""
        self._asked.set()

    def start(self) -> None:
        """Start all sinks."""
        for sink in self.sinks:
            sink.start()

    def close(self, timeout_s: float = STOP_S) -> None:
        """End all sinks at the same time, and let the positions go. Idempotent.

        One that has not ended after `timeout_s` is abandoned.
        """
        if self._is_closed:
            return
        self._is_closed = True
        threads = [threading.Thread(target=sink.stop, args=(timeout_s,)) for sink in self.sinks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._let_go()


def _is_over(sink: RunningSink) -> bool:
    state = sink.state
    if state is SinkState.STOPPED:
        return sink.plan.settings.until is not None
    return state.is_over


def check_sinks(settings: SinksSettings, file: Path | None = None) -> None:
    """Raise SettingsError for everything that a sink could not start with.

    The code of isolated sinks is loaded, each in a process of its own.
    """
    for plan in make_plans(settings, file):
        try:
            plan.check()
        except SettingsError as error:
            raise SettingsError(f"sink {plan.name}: {error}") from error


def make_plans(
    settings: SinksSettings,
    file: Path | None = None,
    only: Sequence[str] = (),
    hidden: Collection[str] = (),
) -> list[SinkPlan]:
    """Return the plans of the sinks, or of some of them; connects to nothing.

    `hidden` are names of environment variables, besides those of these settings, that isolated
    sinks do not get. Raises SettingsError for what a sink could not start with, but for what only
    the code of an isolated one knows.
    """
    known = [sink.name for sink in settings.sinks]
    for name in only:
        if name not in known:
            raise SettingsError(f"there is no sink {name}; there are {', '.join(known)}")
    plans = []
    for sink in settings.sinks:
        try:
            if sink.is_isolated:
                make: MakeSink = IsolatedMaker(sink, file, {*secret_variables(settings), *hidden})
            else:
                make = sink_maker(sink.kind, sink.options, file)
            letters = settings.data_dir / f"{sink.name}.dead-letters.jsonl"
            plan = make_plan(sink, make, letters)
        except SettingsError as error:
            raise SettingsError(f"sink {sink.name}: {error}") from error
        plans.append(plan)
    _check_places(plans)
    return [plan for plan in plans if not only or plan.name in only]


def _check_places(plans: Sequence[SinkPlan]) -> None:
    """Raise SettingsError if two sinks write where only one may."""
    owners: dict[str, str] = {}
    for plan in plans:
        for place in sorted(own_places(plan.make)):
            other = owners.setdefault(place, plan.name)
            if other != plan.name:
                raise SettingsError(
                    f"sinks {other} and {plan.name} have the same {place}: each needs its own"
                )
