"""What type checkers say of right and of wrong uses of the client API."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.repository import ROOT

HERE = Path(__file__).parent
PATIENCE_S = 170


def mypy_errors(file: Path) -> set[int]:
    """Return the lines in which mypy finds errors."""
    command = [sys.executable, "-m", "mypy", "--no-pretty", "--no-error-summary", str(file)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    pattern = re.compile(rf"{re.escape(file.name)}:(\d+): error:")
    return {int(line) for line in pattern.findall(found.stdout)}


def pyright_errors(file: Path) -> set[int]:
    """Return the lines in which pyright finds errors."""
    settings = file.parent / "pyrightconfig.json"
    settings.write_text(json.dumps({"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(settings)]
    command += ["--pythonpath", sys.executable]
    found = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert found.returncode in (0, 1), found.stdout + found.stderr
    told = json.loads(found.stdout)["generalDiagnostics"]
    return {one["range"]["start"]["line"] + 1 for one in told if one["severity"] == "error"}


CHECKERS = {"mypy": mypy_errors, "pyright": pyright_errors}


@pytest.fixture(params=CHECKERS)
def errors(request: pytest.FixtureRequest) -> Callable[[Path], set[int]]:
    """Each type checker."""
    return CHECKERS[request.param]


def lines(file: Path, mark: str) -> dict[int, int]:
    """Return the number of each use by its line."""
    found = {}
    for line, text in enumerate(file.read_text().splitlines(), 1):
        if (marked := re.search(rf"# {mark}(\d+)\b", text)) is not None:
            found[line] = int(marked[1])
    return found


def test_thirty_right_uses_are_found_right(
    errors: Callable[[Path], set[int]], tmp_path: Path
) -> None:
    file = shutil.copy(HERE / "right_uses.py", tmp_path / "right_uses.py")
    assert sorted(lines(file, "").values()) == list(range(1, 31))
    assert errors(file) == set()


def test_thirty_wrong_uses_are_found_wrong_and_nothing_else(
    errors: Callable[[Path], set[int]], tmp_path: Path
) -> None:
    file = shutil.copy(HERE / "wrong_uses.txt", tmp_path / "wrong_uses.py")
    wrong = lines(file, "wrong ")
    assert sorted(wrong.values()) == list(range(1, 31))
    found = errors(file)
    assert {number for line, number in wrong.items() if line not in found} == set(), "not found"
    assert found - wrong.keys() == set(), "not marked"
