"""Which transactions of another server do not go on with the numbers that were delivered."""

from __future__ import annotations

import pytest

from databus.relay.sources.mysql.search.log_order import gtids_of, has_strangers

A, C = "aaaaaaaa-0000-0000-0000-000000000000", "cccccccc-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("executed", "is_so"),
    [
        (f"{A}:1-50:60-100", False),
        (f"{A}:1-50:60-105", False),
        (f"{A}:1-100", True),  # it has those between what was delivered
        (f"{A}:1-50:60-100,{C}:1", True),
    ],
)
def test_of_mysql(executed: str, is_so: bool) -> None:
    delivered = gtids_of(f"{A}:1-50:60-100", is_mariadb=False)
    assert has_strangers(delivered, gtids_of(executed, is_mariadb=False)) is is_so


@pytest.mark.parametrize(
    ("executed", "is_so"), [("0-1-100", False), ("0-2-105", False), ("0-1-100,7-2-1", True)]
)
def test_of_mariadb(executed: str, is_so: bool) -> None:
    delivered = gtids_of("0-1-100", is_mariadb=True)
    assert has_strangers(delivered, gtids_of(executed, is_mariadb=True)) is is_so
