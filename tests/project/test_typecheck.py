"""The type check covers every file, and can tell when it does not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.typecheck import (
    MAPPED,
    ROOT,
    count_checked,
    main,
    place_in_layout,
    python_files,
    select,
)


def test_every_python_file_of_the_repository_is_found(tmp_path: Path) -> None:
    ours = ["setup.py", "relay/ring.py", "relay/fast.pyi", "tests/relay/deep/test_ring.py"]
    others = ["build/x.py", ".venv/x.py", "relay/__pycache__/x.py", "dist/x.py", "notes.txt"]
    for name in ours + others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert python_files(tmp_path) == sorted(map(Path, ours))


def test_the_mapped_packages_are_those_of_the_installation() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    roots = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOTS"
    )
    assert roots == MAPPED


def test_files_lie_where_an_installed_copy_has_them() -> None:
    assert place_in_layout(Path("relay/ring.py")) == Path("databus/relay/ring.py")
    assert place_in_layout(Path("tests/conftest.py")) == Path("tests/conftest.py")


@pytest.mark.parametrize(
    ("summary", "count"),
    [
        ("Success: no issues found in 1 source file\n", 1),
        ("x.py:1: error: no\nFound 2 errors in 1 file (checked 31 source files)\n", 31),
        ("mypy: can't read file\n", 0),
    ],
)
def test_the_count_is_read_from_the_summary(summary: str, count: int) -> None:
    assert count_checked(summary) == count


def test_folders_select_files_and_a_wrong_one_is_named() -> None:
    files = [Path("relay/ring.py"), Path("tests/relay/test_ring.py"), Path("setup.py")]
    assert select(files, []) == files
    assert select(files, ["relay", "setup.py"]) == [files[0], files[2]]
    with pytest.raises(SystemExit, match="no Python file in rely"):
        select(files, ["rely"])


def test_a_file_that_mypy_did_not_check_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("tools.typecheck.LAYOUT", tmp_path / "typecheck")
    monkeypatch.setattr(
        "tools.typecheck._run_mypy",
        lambda files, partial: (0, "Success: no issues found in 2 source files\n"),
    )
    assert main(["tools"]) == 1
    count = sum(path.parts[0] == "tools" for path in python_files(ROOT))
    assert f"mypy checked 2 of {count} files" in capsys.readouterr().out


def test_a_file_that_switches_checking_off_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "loose.py").write_text("# mypy: ignore-errors\nx: int = 'a'\n")
    monkeypatch.setattr("tools.typecheck.ROOT", tmp_path)
    assert main([]) == 1
    assert "switched off for the whole of loose.py" in capsys.readouterr().out
