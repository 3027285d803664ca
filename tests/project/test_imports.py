"""Imports go one way, and each dependency has one home, as the architecture says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tools.repository import PACKAGED, ROOT, python_files

# What each package may import of the others; all may import themselves.
ALLOWED = {
    "databus": frozenset[str](),
    "schemas": frozenset[str](),
    "conf": frozenset({"schemas"}),
    "registry": frozenset({"schemas", "conf"}),
    "relay": frozenset({"schemas", "conf", "registry"}),
    "client": frozenset({"schemas", "conf", "registry"}),
    "bootstrap": frozenset({"schemas", "conf", "registry", "relay.sources", "client"}),
    "pyspark_databus": frozenset({"client.spark"}),
    "demo": frozenset({"schemas", "conf", "registry", "relay", "client", "bootstrap"}),
}
# Chains relays by being a client of one.
CHAINING = Path("relay/sources/relay.py")
# Reads tables of a database in parallel.
SCANNING = Path("client/spark")
# What a source may know of the project besides its siblings.
LEAF = frozenset({"schemas", "conf", "relay.sources"})

HOMES = {
    "avro": ["registry/compatibility.py"],
    "deltalake": ["client/spark/targets/delta.py"],
    "fastavro": ["schemas/*.py"],
    "kazoo": ["client/leases.py", "client/checkpoints/store.py"],
    "pymysql": ["relay/sources/mysql/*.py", "relay/sources/mysql/*/*.py", "demo/databases.py"],
    "pymysqlreplication": ["relay/sources/mysql/*/*.py"],
    "pyarrow": ["client/spark/*.py", "client/spark/*/*.py"],
    "pyspark": ["client/spark/*.py", "client/spark/*/*.py"],
    "sqlalchemy": ["client/spark/targets/sql*.py"],
    "sqlglot": ["client/spark/sql/*.py"],
    "sqlite_utils": ["bootstrap/*.py", "registry/sqlite_store.py", "relay/sources/sqlite/*.py"],
    "tornado": [
        "*/http.py",
        "client/puller/transport.py",
        "databus/daemon/http_server.py",
        "databus/daemon/service.py",
    ],
    "transitions": ["client/machines/states.py"],
}

# What the rules do not touch: sockets, files, threads and clocks, in modules of rules.
IMPURE = frozenset(
    {"asyncio", "http", "multiprocessing", "os", "queue", "select", "socket", "sqlite3", "ssl"}
    | {"subprocess", "tempfile", "threading", "time", "urllib.request"}
)
PURE = [
    "schemas/*.py",
    "client/machines/states.py",
    "client/dispatcher/callbacks.py",
    "client/machines/connection.py",
]
PURE += [
    "client/machines/lifecycle.py",
    "client/machines/server_set.py",
    "relay/serving/databus/stream.py",
]

SOURCES = [path for path in python_files(ROOT) if path.parts[0] in PACKAGED]


def imported_by(text: str) -> Iterator[str]:
    """Yield the full name of every module or attribute that is imported, wherever it stands."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(path: Path) -> list[str]:
    """Return what a file imports of the project, without the leading `databus.`."""
    names = imported_by((ROOT / path).read_text(encoding="utf-8"))
    return [name.removeprefix("databus.") for name in names if name.startswith("databus.")]


def is_within(name: str, packages: frozenset[str]) -> bool:
    """Say whether a dotted name lies in one of the packages."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def breaches(path: Path) -> list[str]:
    """Return the imports of a file that the direction does not allow."""
    package = path.parts[0]
    allowed = ALLOWED[package] | {package}
    if path == CHAINING:
        allowed |= {"client"}
    elif path.is_relative_to(SCANNING):
        allowed |= {"relay.sources"}
    elif path.is_relative_to("relay/sources"):
        allowed = LEAF
    return [name for name in ours(path) if name != "__version__" and not is_within(name, allowed)]


def test_every_package_has_a_rule() -> None:
    assert set(ALLOWED) == PACKAGED
    assert {path.parts[0] for path in SOURCES} == set(ALLOWED)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_imports_go_one_way(package: str) -> None:
    files = [path for path in SOURCES if path.parts[0] == package]
    found = {str(path): breaches(path) for path in files}
    assert {path: names for path, names in found.items() if names} == {}


def test_settings_know_nothing_of_the_wire_but_the_errors() -> None:
    files = [path for path in SOURCES if path.parts[0] == "conf"]
    found = {name for path in files for name in ours(path) if name.startswith("schemas.")}
    assert {name for name in found if not name.startswith("schemas.errors.")} == set()


@pytest.mark.parametrize("dependency", sorted(HOMES))
def test_a_dependency_is_imported_at_home_only(dependency: str) -> None:
    elsewhere = [
        str(path)
        for path in SOURCES
        if any(
            name.split(".")[0] == dependency
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
            if is_within(name, IMPURE)
        ]
        for path in SOURCES
        if fnmatch(str(path), pattern)
    }
    assert {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("path", "text", "is_allowed"),
    [
        ("relay/ring/ring.py", "import databus.client.puller.buffer", False),
        ("relay/ring/ring.py", "def f():\n    from databus.client import buffer", False),
        ("relay/sources/relay.py", "from databus.client.client import DatabusClient", True),
        ("relay/sources/sqlite/source.py", "from databus.relay.ring.ring import Ring", False),
        ("schemas/event/event.py", "from databus.conf import settings", False),
        ("client/spark/jobs/load.py", "from databus.relay.sources import table_scan", True),
        ("client/dispatcher/callbacks.py", "from databus.relay.sources import table_scan", False),
        ("bootstrap/seeder/seeder.py", "from databus.relay.sources import open_source", True),
        ("bootstrap/seeder/seeder.py", "from databus.relay.ring.ring import Ring", False),
    ],
)
def test_the_check_sees_what_it_should(
    path: str, text: str, is_allowed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
    assert (breaches(Path(path)) == []) is is_allowed
