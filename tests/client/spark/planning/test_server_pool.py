"""Several servers that can all answer: which error is raised when none does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

import pytest

from databus.client.spark.planning.server_pool import ServerPool
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    DatabusError,
    NoAnswerError,
    ScnNotFoundError,
    ServerError,
    UnauthorizedError,
    UnknownSourceError,
)

A, B = "http://a:1", "http://b:1"
AWAY = ServerError(A, "cannot connect")


def error_of_pool(monkeypatch: pytest.MonkeyPatch, *errors: DatabusError) -> DatabusError:
    """Return what a pool raises whose servers raise these, one each."""
    by_server = dict(zip((A, B), errors, strict=True))

    def get(self: object, *_: object) -> None:
        raise by_server[self.url]  # type: ignore[attr-defined]

    monkeypatch.setattr("databus.client.spark.planning.server_pool.Server.get", get)
    time_s = [0.0]

    def wait(seconds: float) -> None:
        time_s[0] += seconds

    pool = ServerPool([A, B], 60.0, clock=lambda: time_s[0], wait=wait)
    parameters: Mapping[str, str] = {}
    with closing(pool), pytest.raises(DatabusError) as caught:
        pool.get("/measure", parameters)
    is_final = time_s[0] == 0
    assert is_final is (caught.value in errors), "what is not final is asked again for a while"
    return caught.value


@pytest.mark.parametrize(
    "refusal",
    [
        BootstrapTooOldError.answered(A, "seeding"),
        BootstrapTooYoungError.answered(A, "forgotten"),
        ScnNotFoundError(5, 7),
        UnknownSourceError.answered(A, "shop.x"),
    ],
)
def test_what_every_server_refuses_is_raised_at_once(
    monkeypatch: pytest.MonkeyPatch, refusal: DatabusError
) -> None:
    assert error_of_pool(monkeypatch, refusal, refusal) is refusal


@pytest.mark.parametrize(
    "other", [AWAY, UnauthorizedError.answered(B, "no token"), ScnNotFoundError(5, 7)]
)
def test_servers_that_are_away_are_asked_again_and_then_all_named(
    monkeypatch: pytest.MonkeyPatch, other: DatabusError
) -> None:
    found = error_of_pool(monkeypatch, AWAY, other)
    assert type(found) is NoAnswerError
    assert str(found) == f"servers: none has answered /measure for 60 s: {AWAY}; {other}"


@pytest.mark.parametrize("kind", [BootstrapTooOldError, BootstrapTooYoungError])
def test_what_a_bootstrap_server_can_say_counts_though_another_is_away(
    monkeypatch: pytest.MonkeyPatch, kind: type[BootstrapTooOldError | BootstrapTooYoungError]
) -> None:
    refusal = kind.answered(B, "shop.orders")
    found = error_of_pool(monkeypatch, AWAY, refusal)
    assert type(found) is kind
    assert str(AWAY) in str(found)
    assert str(refusal) in str(found)
