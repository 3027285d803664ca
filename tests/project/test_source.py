"""Habits that a machine can check: sizes, no skipped test, no leftover note."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tools.repository import ROOT, python_files

MOST_FUNCTION_LINES = 50
MOST_FILE_LINES = 500
# Runs once per event in every client, where a call costs as much as a field:
# `benchmarks.callback` shows what that is worth.
WRITTEN_OUT = {(Path("schemas/stream/row_reader.py"), "_cut")}
LEFTOVER = re.compile(r"#.*\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
SKIPS = {"skip", "skipif", "xfail", "importorskip"}

FILES = {path: (ROOT / path).read_text(encoding="utf-8") for path in python_files(ROOT)}
PRODUCT = {path: text for path, text in FILES.items() if path.parts[0] != "tests"}
TESTS = {path: text for path, text in FILES.items() if path.parts[0] == "tests"}


def functions(text: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a file, inner ones too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_function_is_longer_than_a_screen() -> None:
    long = [
        f"{path}:{found.lineno} {found.name}"
        for path, text in FILES.items()
        for found in functions(text)
        if (found.end_lineno or 0) - found.lineno + 1 > MOST_FUNCTION_LINES
        and (path, found.name) not in WRITTEN_OUT
    ]
    assert long == []


def test_no_module_is_longer_than_is_read_at_once() -> None:
    lengths = {str(path): text.count("\n") for path, text in PRODUCT.items()}
    assert {path: n for path, n in lengths.items() if n > MOST_FILE_LINES} == {}


def test_nothing_was_left_for_later() -> None:
    found = [
        f"{path}:{number}"
        for path, text in FILES.items()
        for number, line in enumerate(text.splitlines(), 1)
        if LEFTOVER.search(line)
    ]
    assert found == []


def test_no_test_is_ever_skipped() -> None:
    skipped = [
        f"{path}:{node.lineno}"
        for path, text in TESTS.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in SKIPS
    ]
    assert skipped == []
