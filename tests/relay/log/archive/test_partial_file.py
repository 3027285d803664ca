"""What is here of a file, and what is not, however it comes."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings, strategies as st

from databus.relay.log.archive.partial_file import PartialFile

SIZE = 40
RANGES = st.tuples(st.integers(0, SIZE - 1), st.integers(1, 12)).map(
    lambda one: (one[0], min(SIZE, one[0] + one[1]))
)
CONTENT = bytes(range(100, 100 + SIZE))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(RANGES, max_size=12), RANGES)
def test_the_first_hole_is_that_of_the_bytes_that_never_came(
    tmp_path: Path, ranges: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    file, here = PartialFile.make(tmp_path / "file", SIZE), set[int]()
    for begin, end in ranges:
        file.write(begin, CONTENT[begin:end])
        here |= {*range(begin, end)}
    assert file.held_bytes == len(here)
    missing = [at for at in range(*asked) if at not in here]
    if missing:
        until = next((at for at in range(missing[0], SIZE) if at in here), SIZE)
        assert file.gap(*asked) == (missing[0], until)
    else:
        assert file.gap(*asked) is None
    before = next((n for n in range(SIZE) if asked[0] - 1 - n not in here), SIZE)
    at_an_end = asked[0] not in here
    assert file.before(asked[0]) == (before if at_an_end else 0)
    content = (tmp_path / "file").read_bytes()
    assert content == bytes(CONTENT[at] if at in here else 0 for at in range(SIZE))


def test_a_file_that_was_deleted_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "file"
    file = PartialFile.make(path, SIZE)
    path.unlink()
    file.write(3, CONTENT[3:5])
    assert file.gap(3, 6) == (5, SIZE)
    assert not path.exists()
