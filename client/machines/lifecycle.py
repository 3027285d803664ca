"""The client's lifecycle: what a person or an error does to it, as a machine.

Messages in, instructions out; `client` carries them out. A message that makes
no sense in the present state (pausing what is paused) gives no instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from databus.client.machines.states import LIFECYCLE, Lifecycle, StateMachine


class LifecycleMessage:
    """The root of what the lifecycle machine takes."""


@dataclass(frozen=True, slots=True)
class Start(LifecycleMessage):
    """Begin to read."""


@dataclass(frozen=True, slots=True)
class Pause(LifecycleMessage):
    """Make no more callbacks until `Resume`."""


@dataclass(frozen=True, slots=True)
class Resume(LifecycleMessage):
    """Go on after `Pause`, or after an error that somebody has dealt with."""


@dataclass(frozen=True, slots=True)
class Suspend(LifecycleMessage):
    """Stop where we are: this error needs somebody."""

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
    """The root of what the lifecycle machine asks for."""


@dataclass(frozen=True, slots=True)
class StartReading(LifecycleInstruction):
    """Start the threads, the server set and the connections."""


@dataclass(frozen=True, slots=True)
class HoldCallbacks(LifecycleInstruction):
    """Make no callback after those of the window in hand; the buffer then stops the reading."""


@dataclass(frozen=True, slots=True)
class ReleaseCallbacks(LifecycleInstruction):
    """Make callbacks again."""


@dataclass(frozen=True, slots=True)
class Retry(LifecycleInstruction):
    """Start again whatever had stopped with an error, where it had stopped."""


@dataclass(frozen=True, slots=True)
class ReportError(LifecycleInstruction):
    """Tell the one who waits for the client."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class StopReading(LifecycleInstruction):
    """Stop and join everything."""


class LifecycleMachine:
    """Owns the others: they run while this one says so. Not thread-safe."""

    def __init__(self) -> None:
        self._machine = StateMachine(Lifecycle.INITIAL, LIFECYCLE)
        self.error: BaseException | None = None

    @property
    def state(self) -> Lifecycle:
        """Where it is."""
        return self._machine.state

    def handle(self, message: LifecycleMessage) -> list[LifecycleInstruction]:
        """Take one message, return what must be done, in order."""
        trigger = _TRIGGERS[type(message)]
        if not self._machine.may(trigger):
            return []
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
        return [StopReading()] if was is not Lifecycle.INITIAL else []
