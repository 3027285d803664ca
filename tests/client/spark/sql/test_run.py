"""Running a SQL job: what is done when servers do not answer; without Spark."""

from __future__ import annotations

import threading

import pytest

from databus.client.spark.sql import run as running
from databus.client.spark.sql.job_file import parse_job
from databus.client.spark.sql.run import RunSummary
from databus.schemas.errors import ConsumerError, NoAnswerError, SettingsError

JOB = parse_job(
    "-- target: delta:t\n-- relays: http://r\n-- checkpoint: c\nSELECT id FROM shop.orders"
)
AWAY = NoAnswerError("servers", "none has answered /sources for 60 s: refused")


class AtOnce(threading.Event):
    """The event of a stop that does not come; nobody waits for it."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


def run(monkeypatch: pytest.MonkeyPatch, *events: Exception | str) -> RunSummary:
    """Run a job whose preparing and whose queries, in turn, end so."""
    left = list(events)

    class Scripted(running._Running):
        def prepare(self) -> list[str]:
            return self._next()

        def follow(self, *, available_now: bool) -> None:
            self._next()

        def _next(self) -> list[str]:
            event = left.pop(0)
            if isinstance(event, Exception):
                raise event
            return [event]

    monkeypatch.setattr(running, "_Running", Scripted)
    monkeypatch.setattr(running, "need_own_driver", lambda *_: None)
    try:
        return running.run(JOB, None, stop=AtOnce(), most_restarts=2)  # type: ignore[arg-type]
    finally:
        assert not left


def test_a_job_waits_for_servers_also_before_its_query_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run(monkeypatch, "prepared", AWAY, AWAY, "prepared", "done").restarts == 2


def test_servers_that_stay_away_end_a_job_after_so_many_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ConsumerError, match=r"3 times in a row: .*none has answered"):
        run(monkeypatch, "prepared", AWAY, AWAY, AWAY)


@pytest.mark.parametrize("error", [AWAY, SettingsError("it has no such column")])
def test_what_a_job_cannot_be_started_with_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    with pytest.raises(type(error), match=str(error)):
        run(monkeypatch, error)
