"""The file that quickstart writes, and what it says to type next."""

from __future__ import annotations

from pathlib import Path

import pytest

from databus.conf.loading import load_settings
from databus.conf.settings import RelaySettings
from databus.schemas.errors import SettingsError
from databus.standalone.quickstart.found import Found, FoundTable, Needs
from databus.standalone.quickstart.settings_file import (
    NAME,
    is_written_for,
    next_steps,
    settings_text,
)

LABEL = "mysql://db:3306/shop"
TABLES = (
    FoundTable("shop.orders"),
    FoundTable("shop.view", "is a view"),
    FoundTable('shop.a "b" ü'),
)
FOUND = Found("shop", LABEL, "mysql://databus@db:3306", TABLES, Needs(), Path("x/databus.password"))


def test_the_file_has_what_can_be_captured_and_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / NAME
    file.write_text(settings_text(FOUND, 7, 8), encoding="utf-8")
    settings = load_settings(file, RelaySettings)
    (source,) = settings.physical_sources
    assert source.source_names == ["shop.orders", 'shop.a "b" ü']
    assert source.password_file == tmp_path / "databus.password"
    assert (settings.http.port, settings.bootstrap.port) == (7, 8)


def test_the_server_is_verified_with_the_ca_that_was_given(tmp_path: Path) -> None:
    file = tmp_path / NAME
    file.write_text(settings_text(FOUND._replace(tls_ca=Path("/etc/ca.pem")), 7, 8))
    (source,) = load_settings(file, RelaySettings).physical_sources
    assert source.tls_ca == Path("/etc/ca.pem")


def test_a_file_of_its_own_is_known_again_for_the_same_database_only(tmp_path: Path) -> None:
    file = tmp_path / NAME
    assert not is_written_for(file, LABEL)
    file.write_text(settings_text(FOUND, 7, 8) + "# a line of mine\n", encoding="utf-8")
    assert is_written_for(file, LABEL)
    with pytest.raises(SettingsError, match=r"is for mysql://db:3306/shop, not for sqlite:a\.db"):
        is_written_for(file, "sqlite:a.db")


@pytest.mark.parametrize("text", ["", 'data_dir = "mine"\n', "\xff\n"])
def test_a_file_of_somebody_else_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / NAME
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError, match="does not overwrite it"):
        is_written_for(file, LABEL)


def test_a_name_that_a_shell_would_take_apart_is_quoted() -> None:
    assert "databus tail 'shop.a b' --relay http://r" in next_steps(["shop.a b"], "http://r", "")
    assert "databus tail shop.a_1 --relay http://r" in next_steps(["shop.a_1"], "http://r", "")
