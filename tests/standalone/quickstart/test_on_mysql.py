"""What quickstart says is missing on a MySQL 8, where seeding needs one grant more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from databus.conf.loading import build_settings
from databus.conf.settings import PhysicalSourceSettings
from databus.demo.private_mariadb import PrivateMariaDB
from databus.doctor.checks import Verdict
from databus.relay.sources.kind import check_source
from databus.standalone.quickstart.mysql import Login, Server
from tests.mariadb_server import Database, fresh_database
from tests.mysql_server import PrivateMySQL
from tests.standalone.nodes import read_until_equal, started

pytest_plugins = ["tests.mysql"]
pytestmark = pytest.mark.mysql


@pytest.fixture(scope="module")
def server(new_mysql: Callable[..., PrivateMySQL]) -> Iterator[PrivateMariaDB]:
    """Run a server whose settings the test changes."""
    with new_mysql() as made:
        yield made


@pytest.fixture
def shop(server: PrivateMariaDB) -> Iterator[Database]:
    with fresh_database(server) as made:
        made.run("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
        yield made


def test_the_account_can_capture_and_seed_and_nothing_is_missing_then(
    shop: Database, tmp_path: Path
) -> None:
    file = tmp_path / "capture.password"
    login = Login(
        uri=f"{shop.server.uri}/{shop.name}",
        password=shop.server.password,
        account="capture",
        password_file=file,
    )
    server = Server(login)
    found = server.look()
    assert any("PROCESS ON *.*" in one.text for one in found.needs.statements)
    server.run(found.needs.statements)
    file.write_text(found.password)
    file.chmod(0o600)
    raw = {
        "name": "shop",
        "uri": found.uri,
        "sources": found.sources,
        "password_file": str(file),
    }
    source = build_settings(raw, PhysicalSourceSettings)
    checks = check_source(source, time.time(), reads_log=True, newest_scn=None)
    assert [check for check in checks if check.verdict is not Verdict.OK] == []
    assert server.look().needs.statements == ()


def test_one_command_serves_every_row(shop: Database, tmp_path: Path) -> None:
    shop.run("ALTER TABLE orders ADD COLUMN status VARCHAR(10) DEFAULT 'old'")
    admin = tmp_path / "admin.password"
    admin.write_text(shop.server.password)
    given = ("--account", "other", "--password-file", admin)

    def rows() -> dict[int, str]:
        return dict(shop.run("SELECT id, status FROM orders"))

    with started(tmp_path, f"{shop.server.uri}/{shop.name}", *given) as node:
        node.start()
        shop.run("INSERT INTO orders VALUES (2, 'new')")
        assert read_until_equal(node, f"{shop.name}.orders", rows) == rows()
