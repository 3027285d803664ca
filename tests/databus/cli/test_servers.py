"""`databus servers list`: what a coordinator lists."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from databus.cli.main import main
from databus.servers.directory import SILENT_S
from databus.servers.entry import HeldSource, ServerEntry
from databus.servers.places import open_directory

SHOP = HeldSource(("shop.orders",), 1 << 55, (1 << 55) + 7)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url, now = f"file:{tmp_path}", time.time()
    directory = open_directory(url)
    directory.put(
        ServerEntry(
            "1", "relay", "http://a:11115", "cellar", 3, {"shop": SHOP, "crm": HeldSource(())}, now
        )
    )
    directory.put(
        ServerEntry("2", "bootstrap", "http://b:1", "", 0, {"shop": SHOP}, now - 2 * SILENT_S)
    )
    return url


def databus(*words: str) -> str:
    result = CliRunner().invoke(main, ["servers", "list", *words])
    assert result.exit_code == 0, result.output
    return result.output


def test_each_server_is_listed_with_what_it_says(url: str) -> None:
    lines = [line.split() for line in databus("--coordinator", url).splitlines() if line.strip()]
    assert lines[2][:3] == ["bootstrap", "http://b:1", "0"]
    assert "not known to be alive: not renewed for 20" in " ".join(lines[2])
    assert lines[3][:4] == ["relay", "http://a:11115", "cellar", "3"]
    assert lines[3][4:6] == ["crm", "renewed"]
    assert lines[4] == ["shop", str(SHOP.oldest_scn), str(SHOP.newest_scn)]


def test_as_json_nothing_is_left_out(url: str) -> None:
    found = json.loads(databus("--coordinator", url, "--json"))
    assert [one["kind"] for one in found] == ["bootstrap", "relay"]
    assert found[1]["physicalSources"]["shop"]["sources"] == ["shop.orders"]
    assert [one["isRenewed"] for one in found] == [False, True]
    assert found[0]["silentS"] >= 2 * SILENT_S


def test_an_empty_list_says_where(tmp_path: Path) -> None:
    assert "no server is listed at file:" in databus("--coordinator", f"file:{tmp_path / 'x'}")


def test_a_wrong_url_is_one_line() -> None:
    result = CliRunner().invoke(main, ["servers", "list", "--coordinator", "nowhere"])
    assert result.exit_code == 1
    assert "give file:FOLDER" in result.output
