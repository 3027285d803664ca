"""Every example of docs/testing.md, as a file of tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import PATIENCE_S
from tests.docs.markdown import blocks_of
from tools.repository import ROOT

BLOCKS = {block.test: block.text for block in blocks_of(ROOT / "docs" / "testing.md")}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_examples_tests_pass(name: str, tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(BLOCKS[name])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout


def test_there_is_an_example_of_each_kind() -> None:
    assert set(BLOCKS) == {"consumer", "relay"}
