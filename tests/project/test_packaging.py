"""The distribution: what is in the wheel, and that an installed copy works from anywhere.

Everything is built and installed from a copy of the checkout, so that what an
earlier build left behind cannot end up in the wheel, and without the network.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from databus import __version__
from tools.repository import MAPPED, PACKAGED, ROOT, installed_path, python_files

GENERATED = (".*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "*.c")
NOT_COPIED = shutil.ignore_patterns("tests", *GENERATED)
OFFLINE = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
INSTALL = ["install", *OFFLINE, "--no-compile"]
IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
print(sys.modules["databus"].__file__, sys.modules["databus.relay"].__file__)
"""
# What Spark's worker does when a Python data source is first asked for.
FIND_SOURCES = """
import importlib, pkgutil, sys
from pyspark.sql.datasource import DataSource
names = [one.name for one in pkgutil.iter_modules() if one.name.startswith("pyspark_")]
sources = [getattr(importlib.import_module(name), "DefaultSource", None) for name in names]
print(*(s.name() for s in sources if s is not None and issubclass(s, DataSource)))
print(*(name for name in sys.modules if name.split(".")[0] == "databus"))
"""
MODULES = [
    ".".join(installed_path(path).with_suffix("").parts).removesuffix(".__init__")
    for path in python_files(ROOT)
    if path.parts[0] in PACKAGED and path.name != "__main__.py" and path.suffix == ".py"
]

# What is imported only where the compiled modules were.
COMPILED_ALONE = {
    "databus.relay.sources.mysql.binlog.row_plan",
    "databus.relay.sources.mysql.replication.compiled_assembler",
    "databus.relay.sources.mysql.scan.chunk_rows",
    "databus.relay.sources.mysql.scan.text_plan",
}


@pytest.fixture(scope="module", autouse=True)
def _same_code_is_written_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let Cython keep what it writes: half of a build is to write it, and two are made here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CYTHON_CACHE_DIR", str(tmp_path_factory.mktemp("cython")))
        yield


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout, without what is generated."""
    copy = tmp_path_factory.mktemp("source") / "databus-cdc"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=NOT_COPIED)
    return copy


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip(Path(sys.executable), "wheel", *OFFLINE, "--wheel-dir", folder, checkout)
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `python -m build` makes: the sdist, and the wheel built from it."""
    copy = tmp_path_factory.mktemp("released") / "databus-cdc"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(*GENERATED))
    folder = copy.parent / "dist"
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, copy)
    run(*build, folder=copy.parent)
    return folder


@pytest.fixture(scope="module")
def sdist(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked."""
    (archive,) = released.glob("*.tar.gz")
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return unpacked


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


def run(
    *command: str | Path, folder: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Run a command outside the checkout; return what it prints."""
    ours = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    # What is built here is looked at, not timed: most of a build is optimising.
    ours["CFLAGS"] = "-O0 -g0"
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=ours | dict(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pip(
    python: Path, *words: str | Path, environment: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Run this environment's pip for an interpreter."""
    command = (sys.executable, "-m", "pip", "--python", python, *words)
    run(*command, folder=ROOT.parent, environment=environment)


def files_of(root: Path) -> set[Path]:
    """Return the files below a folder that no build makes, relative to it."""
    found = set()
    for folder, folders, files in os.walk(root):
        left_out = shutil.ignore_patterns(*GENERATED)(folder, [*folders, *files])
        folders[:] = [name for name in folders if name not in left_out or "egg-info" in name]
        found |= {Path(folder, name).relative_to(root) for name in files if name not in left_out}
    return found


def assert_the_demo_delivers(python: Path, folder: Path) -> None:
    """Run a shop, a relay and a consumer from an empty folder."""
    folder = folder / "empty"
    folder.mkdir()
    shown = run(python.parent / "databus", "demo", "--changes", "50", folder=folder)
    assert "delivered 50 of 50 changes, in order" in shown


def compiled(ending: str) -> list[str]:
    """Return the compiled modules' paths, with another ending."""
    found = [path.relative_to(ROOT) for name in MAPPED for path in (ROOT / name).rglob("*.pyx")]
    return [str(path.with_suffix("")) + (ending and f".{ending}") for path in found]


def imported_from(python: Path, folder: Path, modules: Collection[str] = MODULES) -> list[Path]:
    """Import modules, or all of them; return where the root and the relay were found."""
    found = run(python, "-c", IMPORT_ALL, *sorted(modules), folder=folder)
    return [Path(name) for name in found.split()]


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    modules = {str(installed_path(p)) for p in python_files(ROOT) if p.parts[0] in PACKAGED}
    data = {f"databus/schemas/avro/{p.name}" for p in (ROOT / "schemas/avro").glob("*.avsc")}
    data |= {f"databus/conf/{p.name}" for p in (ROOT / "conf").glob("*.toml")}
    data |= {"databus/client/spark/cli/log4j2.properties"}
    data |= {
        f"databus/relay/admin/static/{p.name}" for p in (ROOT / "relay/admin/static").iterdir()
    }
    built = {f"databus/{path}{sysconfig.get_config_var('EXT_SUFFIX')}" for path in compiled("")}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == modules | data | built | {"databus/py.typed"}


def test_a_wheel_of_what_the_image_copies_lacks_only_what_is_compiled(
    wheel: Path, tmp_path: Path
) -> None:
    image = (ROOT / "docs" / "deploy" / "Containerfile").read_text()
    source = tmp_path / "src"
    for line in re.findall(r"^COPY (?!--)(.+)$", image, re.M):
        *names, place = line.split()
        for name in names:
            target = source / place / name if place == "./" else source / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, target, symlinks=True, ignore=NOT_COPIED)
            else:
                shutil.copyfile(ROOT / name, target)
    pip(
        Path(sys.executable),
        "wheel",
        *OFFLINE,
        "--wheel-dir",
        tmp_path,
        source,
        environment={"DATABUS_COMPILE": "no"},
    )
    (pure,) = tmp_path.glob("*.whl")
    assert pure.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(pure) as one, zipfile.ZipFile(wheel) as other:
        compiled_there = {name for name in other.namelist() if name.endswith(".so")}
        assert set(one.namelist()) == set(other.namelist()) - compiled_there


def test_the_wheel_is_named_and_licensed_and_has_one_script(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        texts = {name.split("/")[-1]: name for name in archive.namelist() if ".dist-info/" in name}
        scripts = archive.read(texts["entry_points.txt"]).decode().split()
        metadata = archive.read(texts["METADATA"]).decode()
    assert wheel.name.startswith(f"databus_cdc-{__version__}-cp3")
    assert scripts == ["[console_scripts]", "databus", "=", "databus.cli.main:main"]
    assert "LICENSE" in texts
    assert "Apache-2.0" in metadata


def test_the_compiled_modules_are_built_here() -> None:
    for path in compiled(""):
        name = f"databus.{path.replace('/', '.')}"
        assert importlib.util.find_spec(name), (
            f"{name} was not built: `make test` builds it; by hand, `python setup.py build_ext "
            "--inplace`, which needs cython and a C compiler"
        )


def test_the_sdist_holds_every_file_of_the_checkout(sdist: Path) -> None:
    # But for what git and CI look at: those files begin with a dot.
    missing = files_of(ROOT) - files_of(sdist)
    assert not missing


def test_the_sdist_holds_nothing_that_was_built(sdist: Path) -> None:
    added = {path for path in files_of(sdist) - files_of(ROOT) if ".egg-info" not in path.parts[0]}
    assert added == {Path("PKG-INFO"), Path("setup.cfg")}


def test_the_wheel_built_from_the_sdist_is_the_one_built_from_the_checkout(
    released: Path, wheel: Path
) -> None:
    (from_sdist,) = released.glob("*.whl")
    with zipfile.ZipFile(from_sdist) as one, zipfile.ZipFile(wheel) as other:
        assert set(one.namelist()) == set(other.namelist())


def test_a_relay_runs_from_the_wheel_built_from_the_sdist(
    released: Path, python: Path, tmp_path: Path
) -> None:
    (from_sdist,) = released.glob("*.whl")
    pip(python, *INSTALL, from_sdist)
    assert_the_demo_delivers(python, tmp_path)


def test_the_sdist_is_installed_and_works_without_a_compiler(
    sdist: Path, checkout: Path, wheel: Path, python: Path, tmp_path: Path
) -> None:
    without = tmp_path / "source"
    shutil.copytree(sdist, without)
    for path in compiled("c"):  # that Cython can write them is seen when the wheels are built
        shutil.copyfile(checkout / path, without / path)
    pip(python, *INSTALL, without, environment={"CC": "/nowhere/cc"})
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    assert not [path for path in packages.rglob("*.so") if "databus" in path.parts]
    imported_from(python, tmp_path, set(MODULES) - COMPILED_ALONE)
    assert_the_demo_delivers(python, tmp_path)
    # Not the same code: nothing of a MySQL source is used for SQLite.
    shown = run(python.parent / "databus", "demo", "--mysql", "--changes", "20", folder=tmp_path)
    assert "delivered 20 of 20 changes, in order" in shown


def test_a_wheel_works_from_any_folder(wheel: Path, python: Path, tmp_path: Path) -> None:
    pip(python, *INSTALL, wheel)
    packages = python.parent.parent / "lib"
    assert all(path.is_relative_to(packages) for path in imported_from(python, tmp_path))
    version = run(python.parent / "databus", "--version", folder=tmp_path)
    assert version == f"databus, version {__version__}\n"


def test_nothing_but_databus_and_what_spark_looks_for_lands_in_site_packages(
    wheel: Path, python: Path, tmp_path: Path
) -> None:
    (packages,) = python.parent.parent.glob("lib/python*/site-packages")
    before = set(packages.iterdir())
    pip(python, *INSTALL, wheel)
    added = {path.name.split("-")[0] for path in set(packages.iterdir()) - before}
    assert added == {"databus", "databus_cdc", "pyspark_databus"}


def test_spark_finds_the_data_source_by_itself_and_imports_little_for_it(
    wheel: Path, python: Path, tmp_path: Path
) -> None:
    pip(python, *INSTALL, wheel)
    found, imported = run(python, "-c", FIND_SOURCES, folder=tmp_path).splitlines()
    assert found == "databus"
    assert set(imported.split()) == {
        "databus",
        "databus.client",
        "databus.client.spark",
        "databus.client.spark.source",
        "databus.client.spark.source.data_source",
    }


def test_other_data_sources_are_found_where_pyspark_is_too_old_for_ours(
    wheel: Path, python: Path, tmp_path: Path
) -> None:
    pip(python, *INSTALL, wheel)
    older = "import pyspark.sql.streaming.datasource as of\ndel of.SupportsTriggerAvailableNow\n"
    assert run(python, "-c", older + FIND_SOURCES, folder=tmp_path).splitlines()[0] == ""


def test_pip_install_of_the_folder_works_from_any_folder(
    checkout: Path, python: Path, tmp_path: Path
) -> None:
    pip(python, *INSTALL, checkout)
    packages = python.parent.parent / "lib"
    assert all(path.is_relative_to(packages) for path in imported_from(python, tmp_path))


def test_an_editable_install_runs_the_checkout_from_any_folder(
    checkout: Path, python: Path, tmp_path: Path
) -> None:
    # That it compiles is seen where this environment's own was: that is an editable one.
    pip(python, *INSTALL, "--editable", checkout, environment={"DATABUS_COMPILE": "no"})
    assert imported_from(python, tmp_path, set(MODULES) - COMPILED_ALONE) == [
        checkout / "databus" / "__init__.py",
        checkout / "databus" / "relay" / "__init__.py",
    ]
    version = run(python.parent / "databus", "--version", folder=tmp_path)
    assert version == f"databus, version {__version__}\n"


def test_a_checkout_works_without_being_installed(checkout: Path, python: Path) -> None:
    assert imported_from(python, checkout, set(MODULES) - COMPILED_ALONE) == [
        checkout / "databus" / "__init__.py",
        checkout / "databus" / "relay" / "__init__.py",
    ]
