"""`databus config check` refuses what a daemon could not be started with, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from databus.cli.main import main

SECRET = "open-sesame"
SQLITE = 'name = "shop"\nuri = "sqlite:shop.db"\nsources = ["shop.a"]\n'
MYSQL = 'name = "shop"\nuri = "mysql://u@127.0.0.1:3306"\nsources = ["shop.a"]\n'
OTHER = '[[physical_sources]]\nname = "other"\nuri = "sqlite:other.db"\nsources = ["other.b"]\n'
CANAL = '[[canal.destinations]]\nname = "x"\nphysical_sources = ["shop"]\n'


def check(folder: Path, text: str) -> Result:
    """Check a file beside a file `a-file` and an empty folder `a-folder`."""
    (folder / "a-file").write_text("no certificate\n")
    (folder / "a-folder").mkdir()
    (folder / "settings.toml").write_text(text)
    return CliRunner().invoke(main, ["config", "check", str(folder / "settings.toml")])


def relay(source: str = SQLITE, top: str = 'data_dir = "data"\n', rest: str = "") -> str:
    return f"{top}[[physical_sources]]\n{source}{rest}"


def uri(text: str) -> str:
    return relay(SQLITE.replace("sqlite:shop.db", text))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (uri(f"mysql://u:{SECRET}@h:3306"), "uri = 'mysql://u@h:3306': it has a password in it"),
        (uri(f"mysql://u:{SECRET}/p@w@h"), "name it as password_file or password_env"),
        (uri(f"databus+http://u:{SECRET}@h:1"), "a token, in upstream_token_file"),
        (uri("postgres://u@h/d"), "shop: uri = 'postgres://u@h/d': the scheme must be one of"),
        (uri("shop.db"), "must begin with a scheme"),
        (uri("sqlite:shop.db?fsynch=on"), "'fsynch' is not a parameter; known: fsync"),
        (uri("sqlite:"), "must name a file"),
        (uri("mysql://u@h:3306/shop"), "write mysql://user@host:port"),
        (uri("mysql://u@h:99999"), "Port out of range"),
        (relay(SQLITE + 'start = "gtid:0-1-2"\n'), "must be `latest`, `earliest`, an SCN"),
        (relay(MYSQL + 'password_file = "none"\n'), "none': there is no such file"),
        (relay(MYSQL + 'password_file = "a-folder"\n'), "a-folder': there is no such file"),
        (relay(MYSQL + 'password_env = "NO_SUCH_X"\n'), "password_env NO_SUCH_X is not set"),
        (
            relay(MYSQL + 'password_file = "a-file"\npassword_env = "X"\n'),
            "give password_file or password_env, not both",
        ),
        (relay(MYSQL + 'tls_ca = "a-file"\n'), "no certificate"),
        (relay(MYSQL + "reconnect_max_s = 0.1\n"), "is less than reconnect_min_s"),
        (relay(top='data_dir = "a-file"\n'), "a-file is a file, not a folder"),
        (relay(top='data_dir = "a-file/x"\n'), "a-file is a file, not a folder"),
        (relay(top='data_dir = "x"\nschema_dir = "none"\n'), "none': there is no such folder"),
        (relay(top='data_dir = "x"\ncoordinator = "here"\n'), "give `file:FOLDER`, `zookeeper:"),
        (
            relay(SQLITE + '[physical_sources.log]\ndir = "a-file"\n'),
            "physical_sources.0.log.dir = ",
        ),
        (
            relay(SQLITE + '[physical_sources.log]\narchive = "ftp://x"\n'),
            "it must begin with one of file://",
        ),
        (
            relay(rest=OTHER.replace('"other"', '"shop"')),
            "physical source shop is listed more than once",
        ),
        (relay(SQLITE.replace('"shop.a"', '"shop.a", "shop.A"')), "table A is listed twice"),
        (
            relay(
                SQLITE.replace('"shop.a"', '{ name = "shop.a", id = 1 }'),
                rest=OTHER.replace('"other.b"', '{ name = "other.b", id = 1 }'),
            ),
            "id 1 is given to two sources",
        ),
        (relay(rest='[http]\nadmin_tokens_file = "none"\n'), "http.admin_tokens_file = "),
        (relay(rest='[http]\nadmin_token_env = "NO_SUCH_X"\n'), "NO_SUCH_X is not set"),
        (relay(rest='[http]\ntls_cert = "a-file"\ntls_key = "a-file"\n'), "http.tls_key"),
        (
            relay(rest="[http]\nport = 11116\n[bootstrap]\n"),
            "bootstrap.port and http.port are both 11116",
        ),
        (
            relay(rest=f"[http]\nport = 11111\n[canal]\n{CANAL}"),
            "canal.port and http.port are both 11111",
        ),
        ('relays = ["127.0.0.1:11115"]\n', "is not a URL like http://127.0.0.1:11115"),
        (f'relays = ["http://u:{SECRET}@h:1"]\n', "a token is named apart, by token_file"),
        ('relays = ["http://h:1"]\ncheckpoint_dir = "a-file"\n', "a-file is a file, not a folder"),
        ('relays = ["http://h:1"]\n[access]\ntoken_file = "none"\n', "access.token_file = "),
        ('relays = ["http://h:1"]\nbootstrap_servers = ["h:2"]\n', "is not a URL like"),
        (
            'relays = ["http://h:1"]\n' + uri("generator:"),
            "physical source shop: uri = 'generator:': this kind of source has no tables to read",
        ),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    result = check(tmp_path, text)
    assert result.exit_code == 1, result.output
    assert problem in result.output
    assert SECRET not in result.output


@pytest.mark.parametrize(
    "text",
    [
        relay(),
        relay(rest=OTHER),
        relay(rest="[http]\nport = 0\n[bootstrap]\nport = 0\n"),
        relay(rest=f'[http]\nport = 11111\n[canal]\nhost = "127.0.0.2"\n{CANAL}'),
        relay(top='data_dir = "a-folder/not/yet"\ncoordinator = "file:leases"\n'),
        relay(SQLITE.replace("sqlite:shop.db", "sqlite:/x//y:z@w.db")),
        relay(SQLITE.replace("sqlite:shop.db", "mysql://u%40x@h:3306")),
        'relays = ["https://relay.example.com/databus/"]\n',
    ],
)
def test_what_can_work_is_not(tmp_path: Path, text: str) -> None:
    result = check(tmp_path, text)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("sources", "problem"),
    [
        ('"*"', "names tables of no database"),
        ('"!shop.a"', "leaves out of what no pattern takes in"),
        ('"shop.*", "!shop.t*", "shop.tt"', "source shop.tt is listed, and a pattern with !"),
    ],
)
def test_patterns_that_contradict_themselves_are_refused(
    tmp_path: Path, sources: str, problem: str
) -> None:
    result = check(tmp_path, relay(MYSQL.replace('"shop.a"', sources)))
    assert result.exit_code == 1
    assert problem in result.output


@pytest.mark.parametrize("scheme", ["generator:?rate=1", "databus+http://h:1"])
def test_patterns_are_refused_where_they_cannot_be(tmp_path: Path, scheme: str) -> None:
    text = relay(SQLITE.replace("sqlite:shop.db", scheme).replace("shop.a", "shop.*"))
    assert "is a pattern, which" in check(tmp_path, text).output


def test_who_writes_patterns_is_told_where_to_see_what_they_match(tmp_path: Path) -> None:
    result = check(tmp_path, relay(SQLITE.replace('"shop.a"', '"shop.*", "!shop.tmp_*"')))
    assert result.exit_code == 0
    assert "lists the tables that match shop.*, !shop.tmp_*" in result.output


def test_patterns_in_serving_processes_and_a_pair_of_its_own_are_refused(tmp_path: Path) -> None:
    patterned = relay(SQLITE.replace("shop.a", "shop.*"))
    result = check(tmp_path, "serving_processes = 2\n" + patterned)
    assert "serving_processes must be 0" in result.output
    (tmp_path / "a-folder").rmdir()
    result = check(tmp_path, 'relays = ["http://h:1"]\n' + patterned)
    assert "a bootstrap pair keeps the tables that are listed" in result.output


def test_a_relay_refuses_a_password_in_a_uri_at_its_start_and_does_not_print_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(uri(f"mysql://u:{SECRET}@h:3306"))
    result = CliRunner().invoke(main, ["relay", "run", "-c", str(file)])
    assert result.exit_code == 1
    assert "it has a password in it" in result.output
    assert SECRET not in result.output
