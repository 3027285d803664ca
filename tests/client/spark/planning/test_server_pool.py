"""Several servers that can all answer: which error is raised when none does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from databus.client.spark.planning.server_pool import Answer, ServerPool
from databus.schemas.errors import (
    BootstrapTooOldError,
    BootstrapTooYoungError,
    DatabusError,
    InvalidParameterError,
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
    assert (type(found), found.server) == (kind, B)
    assert str(AWAY) in str(found)
    assert str(refusal) in str(found)


Asked = list[tuple[str, str]]


def registered(
    monkeypatch: pytest.MonkeyPatch, offered: Mapping[str, bool], refusals: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Asked]:
    """Register at two servers, of which some offer the source; others may refuse its name."""
    asked: Asked = []

    def get(self: Any, path: str, parameters: Mapping[str, str], scn: int = -1) -> Answer:
        asked.append((self.url, path))
        if path == "/sources":
            found: Any = [{"name": "shop.x", "id": 4}] if offered[self.url] else []
        else:
            refusal = refusals.get(self.url)
            if refusal is not None and parameters["sources"] == "shop.x":
                raise refusal
            found = [{"id": 4, "version": 1, "schema": '"string"'}]
        return Answer(self.url, {}, bytearray(json.dumps(found).encode()))

    monkeypatch.setattr("databus.client.spark.planning.server_pool.Server.get", get)
    with closing(ServerPool([A, B], 0.0)) as pool:
        return pool.register(["shop.x"]), asked


@pytest.mark.parametrize(
    "why",
    [BootstrapTooOldError.answered(A, "it is being checked"), ServerError(A, "it is damaged")],
)
def test_why_a_source_is_not_listed_yet_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, why: DatabusError
) -> None:
    with pytest.raises(type(why)) as caught:
        registered(monkeypatch, {A: False}, {A: why, B: UnknownSourceError.answered(B, "shop.x")})
    assert caught.value is why


@pytest.mark.parametrize("kind", [UnknownSourceError, InvalidParameterError])
def test_a_source_that_no_server_has_is_unknown(
    monkeypatch: pytest.MonkeyPatch, kind: type[UnknownSourceError | InvalidParameterError]
) -> None:
    """A relay of LinkedIn's takes no names."""
    refusal = kind.answered(A, "shop.x")
    with pytest.raises(UnknownSourceError, match=r"unknown source 'shop\.x'; known: none"):
        registered(monkeypatch, {A: False, B: False}, {A: refusal, B: refusal})


def test_a_source_is_read_from_the_server_that_lists_it(monkeypatch: pytest.MonkeyPatch) -> None:
    why = BootstrapTooOldError.answered(A, "it is being checked")
    found, asked = registered(monkeypatch, {A: False, B: True}, {A: why})
    assert [version.src_id for version in found["shop.x"]] == [4]
    assert asked[-2:] == [(B, "/sources"), (B, "/register")]
