"""Reading a range: what a relay's answer may say of where to go on."""

from __future__ import annotations

import pytest

from databus.client.spark.source.range_reader import check_resume
from databus.schemas.errors import ServerError

RELAY = "http://relay"


@pytest.mark.parametrize("resume", [(5, -1), (6, 0), (6, 3), (6, -1), (9, -1)])
def test_a_place_further_on_within_the_range_is_followed(resume: tuple[int, int]) -> None:
    check_resume(RELAY, resume, (5, -1), 9)


@pytest.mark.parametrize("resume", [(4, -1), (5, 0), (5, 3), (10, 0), (1 << 62, -1), (-1, -1)])
def test_a_place_behind_the_range_or_beyond_it_is_refused(resume: tuple[int, int]) -> None:
    with pytest.raises(ServerError, match=rf"{RELAY}.*resumes at {resume[0]}, {resume[1]}"):
        check_resume(RELAY, resume, (5, -1), 9)
