"""What `databus doctor` looks at on a machine: ports, folders, files, certificates, servers."""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

import pytest

from databus.conf.settings import HttpSettings
from databus.doctor.checks import Check, Verdict, errors, ok, verdict_line
from databus.doctor.machine import (
    MACHINE,
    Growth,
    Machine,
    check_certificate,
    check_cores,
    check_folder,
    check_key,
    check_port,
    check_secret_env,
    check_secret_file,
    filesystem_of,
)
from databus.doctor.servers import check_clock
from tests.relay.sources.certificates import write_certificates

DAY_S = 86400.0


def only(found: list[Check] | Check) -> Check:
    (one,) = found if isinstance(found, list) else [found]
    return one


def assert_is(check: Check, verdict: Verdict, *texts: str) -> None:
    assert check.verdict is verdict, check
    for text in texts:
        assert text in check.text


def test_a_free_port_is_well_and_one_in_use_says_who_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        taken.listen()
        settings = HttpSettings(port=taken.getsockname()[1])
        assert_is(check_port(settings, "relay", is_running=True), Verdict.OK, "runs and has it")
    assert_is(check_port(settings, "relay", is_running=False), Verdict.OK, "can be bound")
    assert_is(check_port(HttpSettings(port=0), "relay", is_running=False), Verdict.OK, "free port")


def test_a_host_that_is_not_ours_cannot_be_bound() -> None:
    settings = HttpSettings(host="192.0.2.1", open_to_all=True)
    assert_is(check_port(settings, "relay", is_running=False), Verdict.ERROR, "http.host")


def test_a_disk_that_is_too_small_is_an_error_and_a_tight_one_a_warning(tmp_path: Path) -> None:
    def look(free: int, size: int, *, is_sure: bool = True) -> Check:
        machine = Machine(free_bytes=lambda _: free, filesystem=lambda _: "ext4")
        growth = Growth(size, "2 rings", is_sure)
        return only(check_folder("data_dir", tmp_path / "not" / "yet", growth, machine))

    assert_is(look(1 << 40, 1 << 20), Verdict.OK, "1.0 TiB free, 1.0 MiB needed for 2 rings")
    assert_is(look(1 << 20, 1 << 30), Verdict.ERROR, "make room")
    assert_is(look(1 << 20, 1 << 30, is_sure=False), Verdict.WARNING, "may be needed")
    assert_is(look(1 << 30, 1 << 30), Verdict.WARNING, "full one day")
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize(("kind", "text"), [("tmpfs", "in memory"), ("nfs4", "on a network")])
def test_a_file_system_that_is_no_disk_is_a_warning(tmp_path: Path, kind: str, text: str) -> None:
    machine = Machine(free_bytes=lambda _: 1 << 40, filesystem=lambda _: kind)
    first, *_ = check_folder("data_dir", tmp_path, Growth(0, "rings"), machine)
    assert_is(first, Verdict.WARNING, text)


def test_a_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = check_folder("data_dir", tmp_path / "file" / "x", Growth(0, "rings"), MACHINE)
    assert_is(only(found), Verdict.ERROR, "is no folder; name another data_dir")


def test_the_file_system_is_the_kernels_word_for_it() -> None:
    assert filesystem_of(Path("/proc/self")) == "proc"


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [(0o600, Verdict.OK), (0o640, Verdict.WARNING), (0o644, Verdict.ERROR)],
)
def test_a_secret_that_others_may_read_is_said(tmp_path: Path, mode: int, verdict: Verdict) -> None:
    path = tmp_path / "password"
    path.write_text("geheim")
    path.chmod(mode)
    check = check_secret_file("token_file", path, is_refused=True)
    assert check.verdict is verdict
    assert check_secret_file("password_file", path).verdict is not Verdict.ERROR
    assert "geheim" not in check.text


def test_a_secret_that_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_is(check_secret_file("x", tmp_path / "none"), Verdict.ERROR, "No such file")
    monkeypatch.delenv("DATABUS_TEST_SECRET", raising=False)
    assert check_secret_env("x", "DATABUS_TEST_SECRET").verdict is Verdict.ERROR
    monkeypatch.setenv("DATABUS_TEST_SECRET", "geheim")
    assert check_secret_env("x", "DATABUS_TEST_SECRET") == ok("x", "DATABUS_TEST_SECRET is set")


@pytest.mark.parametrize(
    ("in_days", "verdict", "text"),
    [
        (0, Verdict.WARNING, "expires on"),
        (2, Verdict.ERROR, "expired on"),
        (-3, Verdict.ERROR, "not good yet"),
    ],
)
def test_a_certificate_says_until_when_it_is_good(
    tmp_path: Path, in_days: int, verdict: Verdict, text: str
) -> None:
    write_certificates(tmp_path)
    machine = Machine(now_s=lambda: time.time() + in_days * DAY_S)
    assert_is(check_certificate("tls_ca", tmp_path / "ca.pem", machine), verdict, text)


def test_a_key_of_another_certificate_and_a_file_that_is_none_are_errors(tmp_path: Path) -> None:
    write_certificates(tmp_path)
    (tmp_path / "key.pem").chmod(0o600)
    good = check_key("tls_key", tmp_path / "cert.pem", tmp_path / "key.pem")
    assert good.verdict is Verdict.OK
    wrong = check_key("tls_key", tmp_path / "ca.pem", tmp_path / "key.pem")
    assert_is(wrong, Verdict.ERROR, "is not the key of")
    shutil.copy(tmp_path / "key.pem", tmp_path / "none.pem")
    assert_is(check_certificate("x", tmp_path / "none.pem", MACHINE), Verdict.ERROR, "PEM")
    assert_is(check_certificate("x", tmp_path / "gone.pem", MACHINE), Verdict.ERROR, "No such file")


@pytest.mark.parametrize(
    ("apart_s", "verdict"), [(0.5, Verdict.OK), (-20, Verdict.WARNING), (4000, Verdict.ERROR)]
)
def test_a_clock_that_is_wrong_is_said(apart_s: float, verdict: Verdict) -> None:
    assert only(check_clock("clock", 1e9 + apart_s, 1e9)).verdict is verdict


def test_the_last_line_counts(tmp_path: Path) -> None:
    checks = [ok("a", "b"), *errors("c", ["one", "", "two\nlines"], "well")]
    assert verdict_line(checks) == "1 ok, 0 warnings, 2 errors"
    assert checks[-1].text == "two lines"
    assert errors("c", [], "well") == [ok("c", "well")]


@pytest.mark.parametrize(
    ("processes", "cores", "verdicts"), [(0, 1, []), (3, 4, ["ok"]), (4, 4, ["warning"])]
)
def test_serving_processes_need_a_core_each(
    processes: int, cores: int, verdicts: list[str]
) -> None:
    found = check_cores(processes, Machine(cores=lambda: cores))
    assert [one.verdict.value for one in found] == verdicts
