"""Patterns of names: `shop.*` takes names in, `!shop.tmp_*` leaves names out. Pure.

One rule for sources, sinks and Spark. `*` stands for any characters, also dots, `?` for one, and
`\\` before one of `* ? ! \\` for that character itself. A name is chosen if some pattern matches
it and none with `!` does; their order does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_SPECIAL = frozenset("*?!\\")
_TOKEN = re.compile(r"\\[*?!\\]|.", re.DOTALL)
_WILD = {"*": ".*", "?": "."}


def is_pattern(text: str) -> bool:
    """Return whether a text is a pattern; otherwise it is a name, perhaps with escapes."""
    return text.startswith("!") or any(token in _WILD for token in _TOKEN.findall(text))


def unescaped(text: str) -> str:
    """Return the name that a text without wild characters stands for."""
    return "".join(_literal(token) for token in _TOKEN.findall(text))


def escaped(name: str) -> str:
    """Return the text that stands for a name and for no other."""
    return "".join(f"\\{one}" if one in _SPECIAL else one for one in name)


def head(text: str) -> str:
    """Return the part of a pattern before its first dot, without `!`; all of it without a dot."""
    return text.removeprefix("!").partition(".")[0]


class NamePatterns:
    """Chooses names by patterns; without any it chooses none."""

    def __init__(self, patterns: Iterable[str] = (), *, fold_case: bool = False) -> None:
        self._texts, self._fold_case = tuple(patterns), fold_case
        texts = [self._folded(one) for one in self._texts]
        self._taken = _compiled(one for one in texts if not one.startswith("!"))
        self._left_out = _compiled(one[1:] for one in texts if one.startswith("!"))

    @property
    def texts(self) -> tuple[str, ...]:
        """The patterns as they are written."""
        return self._texts

    def __bool__(self) -> bool:
        return bool(self._texts)

    def match(self, name: str) -> bool:
        """Return whether a name is chosen."""
        name = self._folded(name)
        return bool(self._taken.fullmatch(name)) and not self._left_out.fullmatch(name)

    def may_match(self, name: str) -> bool:
        """Return whether a name is chosen if case matters, or if it does not."""
        return self.match(name) or self.folding_case().match(name)

    def folding_case(self) -> NamePatterns:
        """Return the same patterns for names whose case does not matter."""
        return NamePatterns(self._texts, fold_case=True)

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """Return the patterns, but for those with `!`, that match none of some names."""
        folded = [self._folded(name) for name in names]
        patterns = [one for one in self._texts if not one.startswith("!")]
        matches = {one: _compiled([self._folded(one)]).fullmatch for one in patterns}
        return [one for one in patterns if not any(map(matches[one], folded))]

    def _folded(self, name: str) -> str:
        return name.lower() if self._fold_case else name


def _compiled(patterns: Iterable[str]) -> re.Pattern[str]:
    """Return what matches the names of any pattern; of none, it matches nothing."""
    texts = ["".join(map(_regex, _TOKEN.findall(one))) for one in patterns]
    return re.compile("|".join(texts) if texts else r"(?!)", re.DOTALL)


def _regex(token: str) -> str:
    return _WILD.get(token) or re.escape(_literal(token))


def _literal(token: str) -> str:
    return token[1:] if len(token) == 2 else token


NO_PATTERNS = NamePatterns()
