"""The words of the project: docs/glossary.md, and words that are not used any more."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.repository import ROOT
from tools.wording import HOME_MADE, Word, home_made_words, text_files, uses_of_home_made_words

GLOSSARY = Path("docs/glossary.md")
ROW = re.compile(r"^\| (?P<word>[^|]+) \| (?P<meaning>[^|]+) \| `(?P<file>[^|`]+)` \|$")


class Entry(NamedTuple):
    """One row of the glossary."""

    word: str
    meaning: str
    file: str


def entries_of(text: str) -> list[Entry]:
    """Return the rows of the table; a row that is no entry is an error."""
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
    found = [ROW.match(row) for row in rows]
    assert [row for row, match in zip(rows, found, strict=True) if match is None] == []
    return [Entry(*(part.strip() for part in match.groups())) for match in found if match]


ENTRIES = entries_of((ROOT / GLOSSARY).read_text(encoding="utf-8"))


@cache
def all_text() -> str:
    """Everything but the glossary, with the names of the files: lower case, in one text."""
    own = {GLOSSARY, Path("tools/wording.py"), Path("CHANGELOG.md")}
    paths = [path for path in text_files() if path not in own and path.parts[0] != "tests"]
    texts = (f"{path}\n{(ROOT / path).read_text(encoding='utf-8')}" for path in paths)
    return "\n".join(texts).lower()


def is_used(word: str, text: str) -> bool:
    """Say whether a text has a word: as English, as_a_name, as a ClassName or as a path."""
    return re.search(r"[\W_]*".join(word.lower().split()), text) is not None


def test_the_glossary_is_in_alphabetical_order_and_has_each_word_once() -> None:
    words = [entry.word.lower() for entry in ENTRIES]
    assert words == sorted(set(words))
    assert len(words) > 40


def test_every_meaning_is_a_sentence() -> None:
    wrong = [
        entry.word
        for entry in ENTRIES
        if not re.match(r"[A-Z]", entry.meaning) or not entry.meaning.endswith(".")
    ]
    assert wrong == []


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: str(entry.word))
def test_a_word_of_the_glossary_is_used_and_lives_where_it_says(entry: Entry) -> None:
    assert is_used(entry.word, all_text())
    assert (ROOT / entry.file).is_file()


@pytest.mark.parametrize("text", ["row batch", "row_batch", "the RowBatch", "row/_batch.py"])
def test_a_word_counts_however_it_is_written(text: str) -> None:
    assert is_used("row batch", text.lower())
    assert not is_used("row batch", "a batch of rows")


@pytest.mark.parametrize("word", HOME_MADE, ids=lambda word: str(word.standard))
def test_a_pattern_is_valid_and_finds_no_word_of_the_glossary(word: Word) -> None:
    pattern = re.compile(word.pattern)
    assert [entry.word for entry in ENTRIES if pattern.search(entry.word)] == []
    # What asks for something not to be there would find less without the borders of words.
    assert "(?" not in word.pattern
    assert r"\B" not in word.pattern


def test_a_home_made_word_is_found_in_text_and_in_file_names() -> None:
    in_text = list(home_made_words("one\nof amounts\n", Path("conf/units.py")))
    assert [str(use) for use in in_text] == ["conf/units.py:2: 'amounts': say 'units'"]
    in_name = list(home_made_words("", Path("conf/amounts.py")))
    assert [use.line for use in in_name] == [1]


def test_home_made_words_are_gone_from_the_whole_tree() -> None:
    assert [str(use) for use in uses_of_home_made_words()] == []
