"""scramble411 against the vectors of stock clients, and how the hash is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from databus.conf.doors.canal_settings import CanalSettings
from databus.relay.serving.canal.protocol.passwords import Login, hash_of, read_login, scramble
from databus.schemas.errors import SettingsError

SEEDS = bytes(range(1, 9))
HASH = "e3619321c1a937c46a0d8bd1dac39f93b27d4458"
DESTINATIONS: Any = [{"name": "example", "physical_sources": ["shop"]}]


def test_hash_and_token_are_those_of_stock_clients() -> None:
    assert hash_of(b"canal").hex() == HASH
    assert scramble(b"canal", SEEDS) == b"7de44690d8e53782cb61804a2455c284a3bbfb06"
    assert scramble(b"", SEEDS) == b"ed26d729f84a104ddef91f5ba7b5174f537fad40"


def test_only_the_right_password_and_user_are_admitted() -> None:
    login = Login("canal", bytes.fromhex(HASH))
    token = scramble(b"canal", SEEDS)
    assert login.admits("canal", token, SEEDS)
    assert not login.admits("root", token, SEEDS)
    for wrong in (b"", b"canal", token[:-2], token.replace(b"7", b"8"), b"\xff" * 40, b"zz" * 20):
        assert not login.admits("canal", wrong, SEEDS)
    assert not login.admits("canal", token, SEEDS[::-1])


def test_without_a_password_everybody_is_admitted_and_without_a_user_any_name() -> None:
    assert Login("", b"").admits("whoever", b"whatever", SEEDS)
    assert Login("", bytes.fromhex(HASH)).admits("whoever", scramble(b"canal", SEEDS), SEEDS)
    assert not Login("canal", b"").admits("root", b"", SEEDS)


def test_a_plain_password_is_taken_only_where_the_settings_say_so() -> None:
    assert not Login("", bytes.fromhex(HASH)).admits("", b"canal", SEEDS)
    taking = Login("", bytes.fromhex(HASH), takes_plain=True)
    assert taking.admits("", b"canal", SEEDS)
    assert taking.admits("", scramble(b"canal", SEEDS), SEEDS)
    assert not taking.admits("", b"canal2", SEEDS)
    assert not taking.admits("", b"", SEEDS)


def test_the_hash_is_read_from_a_private_file_or_a_variable(tmp_path: Path) -> None:
    path = tmp_path / "canal.hash"
    path.write_text(f"# of canal\n*{HASH.upper()}\n")
    settings = CanalSettings(destinations=DESTINATIONS, password_hash_file=path)
    with pytest.raises(SettingsError, match="chmod 600"):
        read_login(settings)
    path.chmod(0o600)
    assert read_login(settings).admits("", scramble(b"canal", SEEDS), SEEDS)
    path.write_text(f"SHA1(stdin)= {HASH}\n")  # as openssl prints it
    assert read_login(settings).admits("", scramble(b"canal", SEEDS), SEEDS)
    named = CanalSettings(destinations=DESTINATIONS, password_hash_env="CANAL_HASH")
    assert read_login(named, {"CANAL_HASH": HASH}).admits("", scramble(b"canal", SEEDS), SEEDS)
    with pytest.raises(SettingsError, match="CANAL_HASH is not set"):
        read_login(named, {})


def test_a_password_in_place_of_its_hash_is_refused() -> None:
    named = CanalSettings(destinations=DESTINATIONS, password_hash_env="CANAL_HASH")
    with pytest.raises(SettingsError, match="40 hexadecimal digits"):
        read_login(named, {"CANAL_HASH": "canal"})
