"""Where a sink with `until` ends."""

from __future__ import annotations

import pytest

from databus.client.sinks.rules.ending import Ending
from databus.schemas.errors import SettingsError
from databus.testing import change, make_window

AT_S = 1_800_000_000
AT = "time:2027-01-15T08:00:00Z"
ROW = change("shop.t", {"id": 1}, "snapshot")
BEFORE_NS, AFTER_NS = (AT_S - 1) * 10**9, AT_S * 10**9


@pytest.mark.parametrize("until", [None, "40", AT])
def test_rows_of_a_bootstrap_as_of_the_end_or_before_are_taken(until: str | None) -> None:
    page = make_window(ROW, scn=40, phase="snapshot")
    ending = Ending(until)
    ending.check_page(page, BEFORE_NS)
    assert not ending.is_past(page)


@pytest.mark.parametrize("until", ["39", AT, "gtid:0-1-7"])
def test_rows_of_a_bootstrap_as_of_after_the_end_are_refused(until: str) -> None:
    page = make_window(ROW, scn=40, phase="snapshot")
    with pytest.raises(SettingsError, match="still to come"):
        Ending(until).check_page(page, AFTER_NS)


@pytest.mark.parametrize("until", ["39", AT, "gtid:0-1-7"])
def test_a_transaction_is_no_page_and_only_ends_the_sink(until: str) -> None:
    Ending(until).check_page(make_window(change("shop.t", {"id": 1}), scn=40), AFTER_NS)
