"""The distribution: what is in the wheel, and that an installed copy works from anywhere.

Everything is built and installed from a copy of the checkout, so that what an
earlier build left behind cannot end up in the wheel, and without the network.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from databus import __version__
from tools.typecheck import MAPPED, ROOT, place_in_layout, python_files

NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests")
OFFLINE = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(sys.modules["databus"].__file__, sys.modules["databus.relay"].__file__)
"""
MODULES = [
    ".".join(place_in_layout(path).with_suffix("").parts).removesuffix(".__init__")
    for path in python_files(ROOT)
    if path.parts[0] in {"databus", *MAPPED} and path.name != "__main__.py"
]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, without what is generated."""
    copy = tmp_path_factory.mktemp("source") / "databus-cdc"
    shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip(Path(sys.executable), "wheel", *OFFLINE, "--wheel-dir", folder, checkout)
    (made,) = folder.iterdir()
    return made


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of a fresh environment that has the dependencies, but not us."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    # A path in a .pth file is searched, but .pth files in it, such as that of
    # an editable install of this very project, are not read.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return folder / "bin" / "python"


def run(*command: str | Path, folder: Path) -> str:
    """Run a command outside the checkout; return what it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(python: Path, *words: str | Path) -> None:
    """Run this environment's pip for an interpreter."""
    run(sys.executable, "-m", "pip", "--python", python, *words, folder=ROOT.parent)


def imported_from(python: Path, folder: Path) -> list[Path]:
    """Import every module; return where the root and the relay were found."""
    return [Path(name) for name in run(python, "-c", IMPORT_ALL, *MODULES, folder=folder).split()]


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    roots = {"databus", *MAPPED}
    modules = {str(place_in_layout(p)) for p in python_files(ROOT) if p.parts[0] in roots}
    data = {f"databus/schemas/avro/{p.name}" for p in (ROOT / "schemas/avro").glob("*.avsc")}
    data |= {f"databus/conf/{p.name}" for p in (ROOT / "conf").glob("*.toml")}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == modules | data | {"databus/py.typed"}


def test_the_wheel_is_named_and_licensed_and_has_one_script(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {name.split("/")[-1]: name for name in archive.namelist() if ".dist-info/" in name}
        scripts = archive.read(texts["entry_points.txt"]).decode().split()
        metadata = archive.read(texts["METADATA"]).decode()
    assert wheel.name.startswith(f"databus_cdc-{__version__}-py3-none-any")
    assert scripts == ["[console_scripts]", "databus", "=", "databus.conf.cli:main"]
    assert "LICENSE" in texts
    assert "Apache-2.0" in metadata


def test_a_wheel_works_from_any_folder(wheel: Path, python: Path, tmp_path: Path) -> None:
    pip(python, "install", *OFFLINE, wheel)
    packages = python.parent.parent / "lib"
    assert all(path.is_relative_to(packages) for path in imported_from(python, tmp_path))
    version = run(python.parent / "databus", "--version", folder=tmp_path)
    assert version == f"databus, version {__version__}\n"


def test_nothing_but_databus_lands_in_site_packages(
    wheel: Path, python: Path, tmp_path: Path
) -> None:
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    before = set(packages.iterdir())
    pip(python, "install", *OFFLINE, wheel)
    added = {path.name.split("-")[0] for path in set(packages.iterdir()) - before}
    assert added == {"databus", "databus_cdc"}


def test_pip_install_of_the_folder_works_from_any_folder(
    checkout: Path, python: Path, tmp_path: Path
) -> None:
    pip(python, "install", *OFFLINE, checkout)
    packages = python.parent.parent / "lib"
    assert all(path.is_relative_to(packages) for path in imported_from(python, tmp_path))


def test_an_editable_install_runs_the_checkout_from_any_folder(
    checkout: Path, python: Path, tmp_path: Path
) -> None:
    pip(python, "install", *OFFLINE, "--editable", checkout)
    assert imported_from(python, tmp_path) == [
        checkout / "databus" / "__init__.py",
        checkout / "relay" / "__init__.py",
    ]
    version = run(python.parent / "databus", "--version", folder=tmp_path)
    assert version == f"databus, version {__version__}\n"


def test_a_checkout_works_without_being_installed(checkout: Path, python: Path) -> None:
    assert imported_from(python, checkout) == [
        checkout / "databus" / "__init__.py",
        checkout / "relay" / "__init__.py",
    ]
