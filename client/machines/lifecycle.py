"""The client's lifecycle machine: start, pause, resume, suspend and shut down.

Messages in, instructions out; `client` carries them out. A message that does not apply in
the current state (pausing a paused client) yields no instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from databus.client.machines.states import LIFECYCLE, Lifecycle, StateMachine


class LifecycleMessage:
    """Base class of the messages to the lifecycle machine."""


@dataclass(frozen=True, slots=True)
class Start(LifecycleMessage):
    """Start reading."""


@dataclass(frozen=True, slots=True)
class Pause(LifecycleMessage):
    """Make no callbacks until `Resume`."""


@dataclass(frozen=True, slots=True)
class Resume(LifecycleMessage):
    """Continue after `Pause`, or after an error that has been dealt with."""


@dataclass(frozen=True, slots=True)
class Suspend(LifecycleMessage):
    """Stop at the current position: the error needs a person."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class ShutDown(LifecycleMessage):
    """End for good."""


_TRIGGERS: dict[type[LifecycleMessage], str] = {
    Start: "start",
    Pause: "pause",
    Resume: "resume",
    Suspend: "suspend",
    ShutDown: "shut_down",
}


class LifecycleInstruction:
    """Base class of the instructions of the lifecycle machine."""


@dataclass(frozen=True, slots=True)
class StartReading(LifecycleInstruction):
    """Start the threads, the server set and the connections."""


@dataclass(frozen=True, slots=True)
class HoldCallbacks(LifecycleInstruction):
    """Make no callbacks after those of the current window; the full buffer then stops reading."""


@dataclass(frozen=True, slots=True)
class ReleaseCallbacks(LifecycleInstruction):
    """Make callbacks again."""


@dataclass(frozen=True, slots=True)
class Retry(LifecycleInstruction):
    """Restart whatever an error has stopped, where it stopped."""


@dataclass(frozen=True, slots=True)
class ReportError(LifecycleInstruction):
    """Wake the thread that waits in `run`, which raises the error."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class StopReading(LifecycleInstruction):
    """Stop and join everything."""


class LifecycleMachine:
    """Decides when the other machines run. Not thread-safe."""

    def __init__(self) -> None:
        self._machine = StateMachine(Lifecycle.INITIAL, LIFECYCLE)
        self.error: BaseException | None = None

    @property
    def state(self) -> Lifecycle:
        """Current state."""
        return self._machine.state

    def handle(self, message: LifecycleMessage) -> list[LifecycleInstruction]:
        """Handle one message; return the instructions, in order."""
        trigger = _TRIGGERS[type(message)]
        if not self._machine.may(trigger):
            return []
        # Only a suspended client has something to restart at `resume`.
        was = self.state
        self._machine.fire(trigger)
        match message:
            case Start():
                return [StartReading()]
            case Pause():
                return [HoldCallbacks()]
            case Resume():
                self.error = None
                retry: list[LifecycleInstruction] = [Retry()] if was is Lifecycle.SUSPENDED else []
                return [*retry, ReleaseCallbacks()]
            case Suspend(error):
                self.error = error
                return [HoldCallbacks(), ReportError(error)]
        # A client that was never started has no threads to stop.
        return [StopReading()] if was is not Lifecycle.INITIAL else []
