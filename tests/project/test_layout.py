"""The layout: what is installed where, and that every file is type checked."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

from tools.repository import MAPPED, ROOT, installed_path, python_files

SWITCHED_OFF = re.compile(r"^#\s*(?:mypy:.*(?:ignore-errors|disable)|type:\s*ignore)", re.MULTILINE)


def test_every_python_file_of_the_repository_is_found(tmp_path: Path) -> None:
    ours = ["setup.py", "relay/ring/ring.py", "relay/fast.pyi", "tests/relay/deep/test_ring.py"]
    others = ["build/x.py", ".venv/x.py", "relay/__pycache__/x.py", "dist/x.py", "notes.txt"]
    for name in ours + others:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "databus").mkdir()
    (tmp_path / "databus" / "relay").symlink_to("../relay")
    assert python_files(tmp_path) == sorted(map(Path, ours))


def test_a_checkout_links_the_packages_that_an_installation_maps() -> None:
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    roots = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ROOTS"
    )
    assert sorted(roots) == list(MAPPED)
    for name in MAPPED:
        assert (ROOT / "databus" / name).readlink() == Path("..", name)


def test_files_lie_where_an_installed_copy_has_them() -> None:
    assert installed_path(Path("relay/relay.py")) == Path("databus/relay/relay.py")
    assert installed_path(Path("tests/conftest.py")) == Path("tests/conftest.py")


def test_the_type_check_covers_every_file() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    checked = settings["tool"]["mypy"]["files"]
    missing = {
        str(path)
        for path in map(installed_path, python_files(ROOT))
        if path.parts[0] not in checked
    }
    assert missing == set()


def test_no_file_switches_the_type_check_off() -> None:
    loose = [
        str(path)
        for path in python_files(ROOT)
        if SWITCHED_OFF.search((ROOT / path).read_text(encoding="utf-8"))
    ]
    assert loose == []
