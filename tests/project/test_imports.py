"""Imports go one way, folders stay readable, and each dependency has one home."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tools.repository import PACKAGED, ROOT, installed_path, python_files
from tools.rooms import PACKAGES, ROOMS, room_of

# What a source may know of the project, whatever its package may.
SOURCES = "relay/sources"
OF_A_SOURCE = "schemas conf databus"
MOST_CODE_FILES = 16

# Of the standard library, too, where one module is the way to what it does.
HOMES = {
    "avro": ["registry/compatibility.py"],
    "bson": ["client/sinks/ready/mongodb/*.py"],
    "deltalake": ["client/spark/targets/delta*.py", "client/spark/targets/logs/delta*.py"],
    "fastavro": ["client/sinks/formats/debezium/converters.py", "schemas/*.py"],
    "h11": ["client/puller/response_parser.py", "client/puller/transport.py"],
    "http.client": ["databus/daemon/http/client.py"],
    "kazoo": [
        "databus/leases/zookeeper_*.py",
        "databus/servers/zookeeper_directory.py",
        "relay/serving/canal/consuming/zookeeper_*.py",
    ],
    "orjson": ["client/sinks/formats/json_bytes.py"],
    "pyiceberg": ["client/spark/targets/iceberg*.py", "client/spark/targets/logs/iceberg*.py"],
    "pymongo": ["client/sinks/ready/mongodb/*.py"],
    "pymysql": ["relay/sources/mysql/*.py", "demo/databases.py"],
    "pymysqlreplication": ["relay/sources/mysql/*/*.py"],
    "pyarrow": [
        "client/arrow/*.py",
        "client/dispatcher/data_window.py",
        "client/sinks/ready/files_parquet.py",
        "client/spark/*.py",
        "relay/log/archive/store.py",
    ],
    "pyspark": ["client/spark/*.py"],
    "sqlalchemy": [
        "client/sinks/ready/sql/*.py",
        "client/spark/targets/sql*.py",
        "client/sql/*.py",
        "databus/leases/sql_records.py",
    ],
    "sqlglot": [
        "client/events/*_condition.py",
        "client/spark/sql/*.py",
        "client/spark/arrow/predicate.py",
    ],
    "sqlite_utils": ["databus/daemon/sqlite_tables.py"],
    "tornado": [
        "*/http.py",
        "*/handlers.py",
        "databus/daemon/http/*.py",
        "databus/daemon/service.py",
        "relay/serving_processes/passing_on.py",
    ],
    "transitions": ["client/machines/states.py"],
    "urllib.request": [],
}

# What the rules do not touch: sockets, files, threads and clocks, in modules of rules.
IMPURE = frozenset(
    {"asyncio", "http", "multiprocessing", "os", "queue", "select", "socket", "sqlite3", "ssl"}
    | {"subprocess", "tempfile", "threading", "time", "urllib.request"}
)
PURE = ["schemas/*.py", "client/machines/*.py", "client/dispatcher/callbacks.py"]
PURE += ["client/sinks/rules/*.py"]
PURE += ["client/group/*.py", "databus/groups/assignment.py", "databus/groups/generations.py"]
PURE += [
    "databus/groups/group_record.py",
    "relay/serving/reading/stream.py",
]
PURE += ["relay/capture/peers/agreement.py", "relay/sources/epochs.py"]

FILES = [path for path in python_files(ROOT) if path.parts[0] in PACKAGED]


def imported_by(text: str) -> Iterator[str]:
    """Yield the full name of every module or attribute that is imported, wherever it stands."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def file_of(name: str) -> Path:
    """Return the file that a dotted name of the project is imported from."""
    path = Path(*name.split("."))
    for place in (path, path.parent):
        for found in (place.with_suffix(".py"), place.with_suffix(".pyi"), place / "__init__.py"):
            if (ROOT / found).is_file():
                return in_checkout(found)
    raise LookupError(f"{name} is no module of the project")


def in_checkout(installed: Path) -> Path:
    """Return where a file of an installed copy lies in the checkout."""
    inner = installed.relative_to("databus") if installed.parts[0] == "databus" else installed
    return inner if installed_path(inner) == installed else installed


def ours(text: str) -> list[Path]:
    """Return the files of the project that a file imports from."""
    roots = ("databus.", "pyspark_databus.")
    return [file_of(name) for name in imported_by(text) if name.startswith(roots)]


def is_within(path: Path, places: str) -> bool:
    """Say whether a file lies in one of the places, which have spaces between them."""
    return any(path.is_relative_to(place) for place in places.split())


def breaches(path: Path, text: str) -> list[str]:
    """Return the files that a file may not import from, but does."""
    package = path.parts[0]
    allowed = f"{package} databus {PACKAGES[package]}"
    if is_within(path, SOURCES):
        allowed = f"{SOURCES} {OF_A_SOURCE}"
    return [
        str(one)
        for one in ours(text)
        if not is_within(one, allowed) or room_of(one) > room_of(path)
    ]


def test_every_package_has_a_rule_and_every_room_exists() -> None:
    assert set(PACKAGES) == PACKAGED == {path.parts[0] for path in FILES}
    assert [room.path for room in ROOMS if not (ROOT / room.path).exists()] == []
    assert {room_of(path) for path in FILES} == set(range(len(ROOMS)))


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_imports_go_one_way(package: str) -> None:
    files = [path for path in FILES if path.parts[0] == package and path.suffix == ".py"]
    found = {str(path): breaches(path, (ROOT / path).read_text("utf-8")) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


def test_a_folder_has_as_many_files_as_are_seen_at_once_and_more_than_one() -> None:
    every = python_files(ROOT)
    code = [p for p in every if p.suffix == ".py" and p.name != "__init__.py"]
    code += [p.relative_to(ROOT) for name in PACKAGED for p in (ROOT / name).rglob("*.pyx")]
    sizes = Counter(path.parent for path in code)
    with_folders = {path.parent.parent for path in every if path.name == "__init__.py"}
    large = {str(folder): n for folder, n in sizes.items() if n > MOST_CODE_FILES}
    lonely = [
        str(folder)
        for folder, n in sizes.items()
        if n == 1 and folder not in with_folders and str(folder) not in PACKAGED
    ]
    assert (large, lonely) == ({}, [])


def test_tests_lie_where_what_they_test_lies() -> None:
    """A folder of tests has the name of a folder of code, unless it is about no one room."""
    about_all = {"benchmarks", "docs", "page", "project", "promises", "torture"}
    folders = {
        path.parent.relative_to("tests") for path in python_files(ROOT) if path.parts[0] == "tests"
    }
    mirrored = {path for path in folders if path.parts and path.parts[0] not in about_all}
    assert {str(path) for path in mirrored if not (ROOT / path).is_dir()} == set()


def test_every_room_says_what_lives_there() -> None:
    silent = [
        str(path)
        for path in FILES
        if path.name == "__init__.py"
        and not ast.get_docstring(ast.parse((ROOT / path).read_text("utf-8")))
    ]
    assert silent == []


def test_settings_know_nothing_of_the_wire_but_scns_and_the_errors() -> None:
    files = [path for path in FILES if path.parts[0] == "conf"]
    found = {str(one) for path in files for one in ours((ROOT / path).read_text("utf-8"))}
    known = {"schemas/errors.py", "schemas/scn.py"}  # a start may be an SCN
    assert {one for one in found if one.startswith("schemas")} == known


@pytest.mark.parametrize("dependency", sorted(HOMES))
def test_a_dependency_is_imported_at_home_only(dependency: str) -> None:
    elsewhere = [
        str(path)
        for path in FILES
        if any(
            name == dependency or name.startswith(f"{dependency}.")
            for name in imported_by((ROOT / path).read_text(encoding="utf-8"))
        )
        and not any(fnmatch(str(path), home) for home in HOMES[dependency])
    ]
    assert elsewhere == []


@pytest.mark.parametrize("pattern", PURE)
def test_rules_import_no_sockets_files_threads_or_clocks(pattern: str) -> None:
    found = {
        str(path): [
            name
            for name in imported_by((ROOT / path).read_text(encoding="utf-8"))
            if any(name == one or name.startswith(f"{one}.") for one in IMPURE)
        ]
        for path in FILES
        if fnmatch(str(path), pattern)
    }
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("path", "text", "is_allowed"),
    [
        ("relay/ring/ring.py", "import databus.client.puller.buffer", False),
        ("relay/ring/ring.py", "def f():\n    from databus.client import client", False),
        ("relay/ring/ring.py", "from databus.relay.relay import Relay", False),
        ("relay/relay.py", "from databus.relay.ring.ring import Ring", True),
        ("relay/sources/sqlite/source.py", "from databus.relay.ring.ring import Ring", False),
        ("schemas/event/event.py", "from databus.conf import settings", False),
        ("schemas/event/event.py", "from databus.schemas import rendering", False),
        ("client/spark/jobs/load.py", "from databus.relay.sources import table_scan", True),
        ("client/machines/states.py", "from databus.client.puller import buffer", False),
        ("bootstrap/seeder/seeder.py", "from databus.relay.sources.kind import open_source", True),
        ("bootstrap/seeder/seeder.py", "from databus.relay.ring.ring import Ring", False),
    ],
)
def test_the_check_sees_what_it_should(path: str, text: str, is_allowed: bool) -> None:
    assert (breaches(Path(path), text) == []) is is_allowed
