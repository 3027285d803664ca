"""Why a sink can read nothing new now: the rules of the client's `/health`, in words."""

from __future__ import annotations

from typing import NamedTuple

from databus.client.machines.reachability import Silence
from databus.client.machines.states import BOOTSTRAPPING
from databus.client.monitoring.reporter import ReportAnswer
from databus.client.registration import Registration
from databus.schemas.errors import BootstrapTooOldError, UnknownSourceError

_BY_SOMEBODY = ("paused", "stopped")  # states of a source that are no alarm at the relay either


class ReadingTrouble(NamedTuple):
    """`problem` says why, and what to do; "" = nothing is wrong.

    `is_failure`: it is no work that goes on, as that of a bootstrap server that reads its tables.
    """

    problem: str = ""
    is_failure: bool = False


def reading_trouble(
    registration: Registration, silence: Silence | None, answer: ReportAnswer, physical: str
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


def _of_silence(registration: Registration, silence: Silence) -> ReadingTrouble:
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
