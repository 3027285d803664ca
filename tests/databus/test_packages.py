"""The doctor looks at what is installed."""

from __future__ import annotations

import pytest

from databus.doctor import packages
from databus.doctor.checks import Verdict, has_errors
from databus.doctor.packages import check_packages
from tests.databus.test_doctor import assert_is
from tools.repository import ROOT


def test_the_packages_of_this_installation_are_as_they_should_be() -> None:
    assert not has_errors(check_packages())
    assert_is(check_packages()[0], Verdict.OK, "Python 3.")


def test_a_package_that_is_missing_or_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["tornado>=6.4", "click>=99.1", "no-such-thing>=1", "delta>=1; extra == 'spark'"]
    monkeypatch.setattr(packages, "requires", lambda _: wanted)
    too_old, missing = check_packages()
    assert_is(too_old, Verdict.ERROR, "click is", "must be >=99.1: pip install 'click>=99.1'")
    assert_is(missing, Verdict.ERROR, "no-such-thing is not installed")
    assert any("delta" in check.text for check in check_packages(["spark"]))


def test_another_distribution_with_a_package_of_our_name_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owners = {"databus": ["databus", "databus-cdc"], "tornado": ["tornado"]}
    monkeypatch.setattr(packages, "packages_distributions", lambda: owners)
    found = [check for check in check_packages() if check.verdict is Verdict.ERROR]
    assert ["pip uninstall databus, then" in check.text for check in found] == [True]


def test_every_compiled_module_is_looked_for() -> None:
    roots = [path.name for path in (ROOT / "databus").iterdir() if path.is_symlink()]
    files = [path for root in roots for path in (ROOT / root).rglob("*.pyx")]
    names = {f"databus.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}" for path in files}
    assert names == {*packages.COMPILED}


def test_compiled_modules_that_are_missing_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda _: None)
    assert {check.verdict for check in check_packages()[1:]} == {Verdict.WARNING}
