"""Many clients and an API that is asked all the time, in short form, and what the check notices."""

from __future__ import annotations

from typing import Any, cast

import pytest

from benchmarks.admin_load import PATHS, Api, check, run
from benchmarks.shared.admin_load_clients import Tally, keys_of


class ToldApi:
    """Answers what a test says."""

    def __init__(self, **changes: Any) -> None:
        client = {"id": "holder-0", "requests": 3, "servedBytes": 500}
        self._client = client | changes

    def source(self) -> dict[str, Any]:
        return {"ring": {"maxScn": "7"}, "events": 70, "windows": 7}

    def ask(self, path: str) -> dict[str, Any]:
        if path == PATHS[1]:
            return {"clients": [self._client]}
        return {"clients": 1, "streamRequests": 3, "servedBytes": 500, "heldRequests": 0}


def found(api: ToldApi, **changes: Any) -> list[str]:
    tally = Tally("holder-0", 3, 500, 2, 20, 7)
    for name, value in changes.items():
        setattr(tally, name, value)
    return list(check(cast(Api, api), [tally], {"holder-0"}))


def test_what_was_counted_is_what_the_api_says() -> None:
    figures, problems = run(holding=10, readers=4, seconds=1.0)
    assert problems == []
    values = {figure.name: figure.value for figure in figures}
    assert values["14 clients: answers of /api/v1"] > 3
    assert values["14 clients: read"] > 0


@pytest.mark.parametrize(
    ("told", "counted", "text"),
    [
        ({"requests": 4}, {}, "requests of holder-0: the API says 4, counted were 3"),
        ({"servedBytes": 501}, {}, "bytes of holder-0"),
        ({}, {"scn": 6}, "has read up to 6, the writer wrote 7"),
        ({}, {"rows": 19}, "rows of holder-0"),
        ({}, {"problem": "window 9 came after 7"}, "window 9 came after 7"),
        ({"id": "somebody"}, {}, "the API says None"),
    ],
)
def test_whatever_is_off_is_told(told: Any, counted: Any, text: str) -> None:
    assert found(ToldApi()) == []
    assert any(text in problem for problem in found(ToldApi(**told), **counted))


def test_the_rows_of_windows_are_never_the_same() -> None:
    assert not {*keys_of(1)} & {*keys_of(2)}
