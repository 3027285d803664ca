"""Words that are not used in this tree, and what is said instead.

`tests/project/test_glossary.py` looks for them in code, docs, page and messages. When the last
use of such a word goes, add its line here, so that it does not come back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.repository import NOT_OURS, ROOT

_SUFFIXES = {
    *(".py", ".pyi", ".pyx", ".pxi", ".toml", ".sh", ".md"),
    *(".js", ".css", ".html", ".json", ".yml", ".yaml", ".service"),
}
# What was released under the old words, the list of them and its test.
_EXEMPT = {
    Path("CHANGELOG.md"),
    Path("tools/wording.py"),
    Path("tests/project/test_glossary.py"),
}


class Word(NamedTuple):
    """A pattern that may not occur, and the standard word."""

    pattern: str
    standard: str

    @property
    def rough_pattern(self) -> str:
        """Finds a text that may have it: far faster, as it asks for no borders of words."""
        return self.pattern.replace(r"\b", "")


HOME_MADE = (
    Word(r"\b_?[Ss]ieves?\b|\b_?[Ss]ift(s|ed|ing)?\b|\b_?sift_\w+", "event selector, select"),
    Word(r"LaneAssembler", "binlog decoder"),  # a lane is one of a sink's threads
    Word(r"\bamounts\b", "units"),
    Word(r"\bpiece_builder\b", "batch builder"),
    Word(r"\blog_look_\w+|\bopen_look\b", "log probe"),
    Word(r"\bopen_log_look\b|\bLogLook\b|\bLogWatch\b", "log probe, log monitor"),
    Word(r"\bSurroundings\b", "client context"),
    Word(r"\bintake\b|\b(Page)?Intake\b", "window decoder, page decoder"),
    Word(r"\bIdleAdvance\b|\bidle[ _]advance\b", "heartbeat"),
    Word(r"\bBell\b", "notifier"),
    Word(r"conf[./]turns\b|\bself\.turns\b", "fair queue"),
    Word(r"conf[./]asking\b", "API client"),
    Word(r"\bkept_checkpoints\b|\bcheckpoint_places\b", "checkpoint listing, checkpoint lag"),
    Word(r"\bsource_choice\b", "source lookup"),
    Word(r"\bquery_figures\b", "query metrics"),
    Word(r"\bverify_notes\b", "scratch table"),
    Word(r"\bwide_rows\b", "join rows"),
    Word(r"\b(PieceBuilder|cut_piece|ColumnCutter)\b", "batch builder, column decoder"),
    Word(r"\b(FeedGroup|MirrorTable|open_mirrors)\b", "stream group, join state"),
    Word(r"\b(Query|Batch|Place)Figures\b", "stats"),
    Word(r"\bBell\b|\bbell\.(ring|listen)\b", "notifier"),
    Word(r"\bStanding\b|\bLogLook\b|\bopen_log_look\b", "log status, log probe"),
    Word(r"\b[Oo]bserved\b", "monitor"),
    Word(r"\bRecent\b", "rate counter"),
    Word(r"\bDoubts\b|\bas_doubt\b", "repeated errors"),
    Word(r"\bAsker\b|\.asker\b", "peer"),
    Word(r"\bway_on\b|\b_WAY_ON\b", "remedy"),
    Word(r"\bIdleAdvance\b|\bidle advance\b", "heartbeat"),
    Word(r"\bLogWatch\b|\bRelayWatch\b", "LogMonitor, RelayMonitor"),
    Word(r"\bBook\b", "CommitLog"),
    Word(r"\bProblemLog\b", "ErrorLog"),
    Word(r"\bTogether(Job|Response)\b", "MultiSourceJob, MultiSourceResponse"),
    Word(r"\bTurns\(", "fair queue"),
    Word(r"\b(fell|falls) off the (relay|ring)\b", "lagged out"),
    Word(r"\bno relay says\b", "no relay reports"),
    Word(r"\bas told\b", "say by whom or by what"),
    Word(r"\bPace\b", "RateLimiter"),
    Word(r"\b[Ii]ntakes?\b|\b(Page)?Intake\b", "window decoder, page decoder"),
    Word(r"\b[Ss]urroundings\b", "ClientContext"),
    Word(r"\bnot built yet\b", "say what there is"),
)


class Use(NamedTuple):
    """A place where a home-made word stands."""

    path: Path
    line: int
    found: str
    standard: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found!r}: say {self.standard!r}"


def text_files(root: Path = ROOT) -> Iterator[Path]:
    """Yield the files with words in them, relative to `root`."""
    for path in sorted(root.iterdir()):
        if path.is_symlink() or path.name.startswith(".") or path.name in NOT_OURS:
            continue
        if path.is_dir():
            if not path.name.endswith(".egg-info"):
                yield from (Path(path.name, inner) for inner in text_files(path))
        elif path.suffix in _SUFFIXES:
            yield Path(path.name)


def home_made_words(text: str, path: Path) -> Iterator[Use]:
    """Yield the home-made words of a text; its path counts as its first line."""
    for word in HOME_MADE:
        is_possible = re.search(word.rough_pattern, text) is not None
        for found in re.finditer(word.pattern, text) if is_possible else ():
            line = text.count("\n", 0, found.start()) + 1
            yield Use(path, line, found.group(), word.standard)
        named = re.search(word.pattern, str(path))
        if named is not None:
            yield Use(path, 1, named.group(), word.standard)


def uses_of_home_made_words() -> list[Use]:
    """Return every use of a home-made word in the repository."""
    return [
        use
        for path in text_files()
        if path not in _EXEMPT
        for use in home_made_words((ROOT / path).read_text(encoding="utf-8"), path)
    ]
