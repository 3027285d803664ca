"""Logs: a record a line, what it is about, and no secret whatever goes wrong."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from databus.conf.settings import PhysicalSourceSettings, ServerAccessSettings
from databus.daemon.log_setup import JsonFormatter, LogFormat, TextFormatter, about, hide, redact
from databus.daemon.tokens import read_token
from databus.relay.sources.mysql.server.connection import address_of, connect
from databus.schemas.errors import ConsumerError, SourceError
from tests import PATIENCE_S
from tests.databus.daemon.test_access import ADMIN, READER, bearer, served, write_tokens
from tests.databus.daemon.test_service import (
    CONFIG,
)
from tests.relay.fakes import get
from tools.repository import ROOT

PASSWORD = "correct-horse-battery"


@contextmanager
def logging_as(log_format: LogFormat) -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """Give a logger, and what it has written."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield logging.getLogger("databus.test"), written
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def records(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_a_json_record_is_a_line_with_what_it_is_about() -> None:
    with logging_as("json") as (log, written):
        known = about(physical_source="shop", source="shop.orders", scn=1 << 60, client="::1")
        log.warning("%s stopped\nfor now", "shop", extra=known)
    (record,) = records(written)
    time = record.pop("time")
    assert time.endswith("+00:00")
    assert record == {
        "level": "warning",
        "logger": "databus.test",
        "message": "shop stopped\nfor now",
        "physical_source": "shop",
        "source": "shop.orders",
        "scn": str(1 << 60),
        "client": "::1",
    }


def test_a_json_record_has_its_exception_in_the_same_line() -> None:
    with logging_as("json") as (log, written):
        try:
            raise ZeroDivisionError("oh")
        except ZeroDivisionError:
            log.exception("failed")
    (record,) = records(written)
    assert record["exception"].splitlines()[-1] == "ZeroDivisionError: oh"


def test_a_text_record_is_a_line_that_nobody_can_forge_another_with() -> None:
    with logging_as("text") as (log, written):
        log.error("asked for %s", "x\n2026-01-01 ERROR forged\x1b[2J", extra=about(scn=7))
        log.error("shop stopped after scn 7", extra=about(physical_source="shop", scn=7))
    first, second = written.getvalue().splitlines()
    assert first.endswith(r"asked for x\n2026-01-01 ERROR forged\x1b[2J (scn=7)")
    assert second.endswith(": shop stopped after scn 7"), "nothing is said twice"


def test_an_error_names_the_scn_better_than_who_logs_it() -> None:
    assert about(scn=5, error=ConsumerError(9, "no")) == {"scn": "9"}
    assert about(scn=5, error=ZeroDivisionError()) == {"scn": "5"}
    assert about(scn=-1) == {}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_what_looks_like_a_secret_is_not_logged(log_format: LogFormat) -> None:
    texts = [
        f"GET /sources Authorization: Bearer {ADMIN}",
        f"cannot connect to mysql://databus:{PASSWORD}@db.example.com:3306/shop",
        f"connect(user='databus', password='{PASSWORD}')",
        f"{{'host': 'db', 'password': '{PASSWORD}', 'token': '{ADMIN}'}}",
        f"https://relay/sources?token={ADMIN}&v=1",
    ]
    with logging_as(log_format) as (log, written):
        for text in texts:
            log.error(text)
            try:
                raise ConnectionError(text)
            except ConnectionError:
                log.exception("it failed", extra={"client": text})
    assert PASSWORD not in written.getvalue()
    assert ADMIN not in written.getvalue()
    assert written.getvalue().count("***") >= 3 * len(texts)


@pytest.mark.parametrize(
    "text",
    [
        "this server asks for a token: send `Authorization: Bearer <token>` with a token",
        "Access denied for user 'databus'@'localhost' (using password: YES)",
        "http.admin_tokens_file /etc/databus/admins: others may read it: chmod 600",
        "check the user in uri, password_file or password_env",
    ],
)
def test_what_only_speaks_of_secrets_is_logged_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_a_secret_that_was_read_is_not_logged_in_any_words(tmp_path: Path) -> None:
    token = read_token(ServerAccessSettings(token_file=write_tokens(tmp_path / "t", READER * 2)))
    with logging_as("json") as (log, written):
        log.error("somebody said %s to me", token)
        log.error("%r", [token.encode()])
    assert token not in written.getvalue()
    assert hide("a") == "a"
    assert redact("a banana") == "a banana", "a word is not a secret"


def test_errors_of_a_database_connection_and_its_settings_do_not_tell_the_password(
    tmp_path: Path,
) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    settings = PhysicalSourceSettings(
        name="shop",
        uri="mysql://databus@127.0.0.1:1",
        sources=("shop.orders",),
        password_file=password,
    )
    with logging_as("json") as (log, written):
        address = address_of(settings)
        log.error("%s %r", settings, address)
        try:
            connect(address, source="shop")
        except SourceError as error:
            log.exception("cannot connect: %s", error)
            log.error("%r %r", error.__cause__, vars(error))
        log.error("the password is %s", PASSWORD)
    assert len(records(written)) == 4
    assert PASSWORD not in written.getvalue()


def test_requests_and_refusals_are_logged_with_the_client_and_without_the_token(
    tmp_path: Path,
) -> None:
    tokens = write_tokens(tmp_path / "admins", ADMIN)
    with logging_as("json") as (_, written), served(tmp_path, admin_tokens_file=tokens) as relay:
        get(relay.url, f"/nonsense?token={ADMIN}", bearer(ADMIN))
        get(relay.url, "/sources", bearer("wrong-" + READER))
    logger = "databus.daemon.http.handlers"
    said = [record for record in records(written) if record["logger"] == logger]
    assert {record["client"] for record in said} == {"127.0.0.1"}
    assert ADMIN not in written.getvalue()
    assert READER not in written.getvalue()


@pytest.mark.parametrize("by_setting", [True, False])
def test_a_relay_logs_json_with_source_and_scn(tmp_path: Path, by_setting: bool) -> None:
    config = tmp_path / "relay.toml"
    setting = 'log_format = "json"\n' if by_setting else ""
    text = CONFIG.replace("generator:?rate=100", "sqlite:nowhere/shop.db")
    config.write_text(setting + text)
    command = [sys.executable, "-m", "databus.cli.main", "relay", "run", "-c", str(config)]
    command += [] if by_setting else ["--log-format", "json"]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        record = json.loads(process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert record["physical_source"] == "dice"
    assert record["logger"] == "databus.relay.capture.capture"
    assert record["level"] in ("warning", "error")
