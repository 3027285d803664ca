"""Why a sink can read nothing new now: the rules of the client's `/health`, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from databus.client.machines.reachability import Silence
from databus.client.machines.states import BOOTSTRAPPING, Connection
from databus.client.subscription import Subscription
from databus.daemon.client_report import WaitsFor
from databus.schemas.errors import BootstrapTooOldError, DatabusError, UnknownSourceError

_BY_SOMEBODY = ("paused", "stopped")  # states of a source that are no alarm at the relay either


class Reader(Protocol):
    """What is needed of a registration of the client."""

    subscription: Subscription

    @property
    def connection(self) -> Connection:
        """State of the connection machine."""
        ...

    @property
    def last_error(self) -> DatabusError | None:
        """The newest error of reading, until a server answers again."""
        ...


class Answer(Protocol):
    """What is needed of the relays' answers to the client's reports."""

    @property
    def waits_for(self) -> Sequence[WaitsFor]:
        """The sources that were read to the end, and whose capture delivers nothing."""
        ...


class ReadingTrouble(NamedTuple):
    """`problem` says why, and what to do; "" = nothing is wrong.

    `is_failure`: it is no work that goes on, as that of a bootstrap server that reads its tables.
    """

    problem: str = ""
    is_failure: bool = False


def reading_trouble(
    registration: Reader, silence: Silence | None, answer: Answer, physical: str
) -> ReadingTrouble:
    """Return what keeps a registration from reading a physical source."""
    if silence is not None:
        return _of_silence(registration, silence)
    for one in answer.waits_for:
        if one.physical_source == physical and one.state not in _BY_SOMEBODY:
            return ReadingTrouble(
                f"the relay captures nothing of {physical} now ({one.state}): its page and "
                "`databus top` say why",
                True,
            )
    return ReadingTrouble()


def _of_silence(registration: Reader, silence: Silence) -> ReadingTrouble:
    error = registration.last_error
    if isinstance(error, BootstrapTooOldError):
        return ReadingTrouble(silence.problem)
    is_unknown = isinstance(error, UnknownSourceError)
    if is_unknown and registration.connection in BOOTSTRAPPING:
        sources = ", ".join(registration.subscription.sources)
        return ReadingTrouble(
            f"{silence.problem}: it does not keep all of {sources}. What came after its start it "
            "keeps after a restart (of `databus run`, or of the pair with the table in its "
            "settings); else leave the table out of `sources`",
            True,
        )
    return ReadingTrouble(silence.problem, True)
