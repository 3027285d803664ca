"""The copy of the definitions of tables: whole lines, up to an SCN that is known."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from databus.relay.capture.standby.definitions import DefinitionsCopy, read_definitions
from databus.schemas.errors import SourceUnavailableError


class Answering:
    """Another relay, as far as its definitions are asked for."""

    def __init__(self, path: Path, scn: int) -> None:
        self.path, self.scn, self.asked = path, scn, list[str]()

    def path_of(self, rest: str) -> str:
        return rest

    def get(self, path: str, read: Any, parameters: Mapping[str, str]) -> Any:
        assert path == "/definitions"
        have = parameters.get("have", "")
        self.asked.append(have)
        found = read_definitions(self.path, lambda: self.scn, have)
        scn = None if found.scn < 0 else str(found.scn)
        return read({"scn": scn, "tag": found.tag, "text": found.text})


class Upstream:
    """The part of `Upstream` that is used."""

    def __init__(self, answering: Answering) -> None:
        self.path, self.get = answering.path_of, answering.get


def copy_in(folder: Path) -> DefinitionsCopy:
    return DefinitionsCopy(folder / "shop.history", folder / "shop.definitions.json")


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "shop.history"
    assert read_definitions(path, lambda: 7, "").text == ""
    path.write_bytes(b"one\ntwo\nthr")
    found = read_definitions(path, lambda: 7, "")
    assert (found.scn, found.text) == (7, "one\ntwo\n")
    assert read_definitions(path, lambda: 8, found.tag) == (8, found.tag, None)
    path.write_bytes(b"one\ntwo\nthree\n")
    again = read_definitions(path, lambda: 9, found.tag)
    assert (again.text, again.tag != found.tag) == ("one\ntwo\nthree\n", True)


def test_the_scn_is_asked_for_before_the_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shop.history"

    def newest_scn() -> int:
        path.write_bytes(b"of 7\n")  # as it would be by then
        return 7

    found = read_definitions(path, newest_scn, "")
    assert (found.scn, found.text) == (7, "of 7\n")


def test_a_copy_is_taken_when_it_changes_and_lasts(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "a", tmp_path / "b"
    theirs.mkdir()
    ours.mkdir()
    there = Answering(theirs / "shop.history", 5)
    there.path.write_bytes(b"one\n")
    copy = copy_in(ours)
    copy.take(Upstream(there))  # type: ignore[arg-type]
    assert copy_in(ours).scn == copy.scn == 5
    assert (ours / "shop.history").read_bytes() == b"one\n"
    there.scn = 6
    (ours / "shop.history").touch()
    copy.take(Upstream(there))  # type: ignore[arg-type]
    assert [bool(have) for have in there.asked] == [False, True]
    # After a restart it is known up to where the copy is complete.
    assert copy_in(ours).scn == 6
    copy.forget()
    assert copy_in(ours).scn is None
    assert (ours / "shop.history").read_bytes() == b"one\n"


def test_nothing_is_known_of_a_relay_that_has_no_window_or_does_not_answer(tmp_path: Path) -> None:
    there, copy = Answering(tmp_path / "none", -1), copy_in(tmp_path)
    copy.take(Upstream(there))  # type: ignore[arg-type]
    assert copy.scn is None
    assert not (tmp_path / "shop.history").exists()

    def refuse(*_: object) -> Any:
        raise SourceUnavailableError("does not answer")

    there.get = refuse  # type: ignore[assignment, method-assign]
    with pytest.raises(SourceUnavailableError):
        copy.take(Upstream(there))  # type: ignore[arg-type]


def test_a_damaged_note_of_the_copy_counts_as_none(tmp_path: Path) -> None:
    there, copy = Answering(tmp_path / "theirs", 5), copy_in(tmp_path)
    copy.take(Upstream(there))  # type: ignore[arg-type]
    noted = tmp_path / "shop.definitions.json"
    noted.write_bytes(noted.read_bytes().replace(b"5", b"6", 1))
    assert copy_in(tmp_path).scn is None
