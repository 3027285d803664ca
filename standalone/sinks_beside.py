"""The sinks of `databus run`: they read the relay and the pair of the same process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from databus.client.sinks.running.feed import SinkState
from databus.client.sinks.running.plan import SinkPlan
from databus.client.sinks.serving.process import SinkProcess
from databus.client.sinks.serving.service import make_service
from databus.conf.sink_settings import SinksSettings
from databus.daemon.service import Service


class SinksBeside:
    """Sinks that start and end as a service."""

    def __init__(self, plans: Sequence[SinkPlan]) -> None:
        self._plans = plans
        self._process: SinkProcess | None = None

    def service(self, settings: SinksSettings) -> Service:
        """Take the positions, and return the service; raise CheckpointError and SettingsError."""
        process = self._process = SinkProcess(settings, self._plans)
        served = make_service(process, settings)

        def stop(timeout_s: float) -> None:
            process.close(timeout_s)
            served.stop(timeout_s)

        return replace(served, start=process.start, stop=stop)

    def close(self) -> None:
        """End the sinks, if a start that failed has left them."""
        if self._process is not None:
            self._process.close()

    @property
    def states(self) -> dict[str, SinkState]:
        """The state of each sink; empty before the start."""
        if self._process is None:
            return {}
        return {sink.plan.name: sink.state for sink in self._process.sinks}
