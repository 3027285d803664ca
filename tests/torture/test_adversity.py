"""The short form of the attacks: nothing lost, nothing wrong, nobody who looks well and is not."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.adversity.run import main


@pytest.mark.mariadb
def test_what_is_attacked_holds() -> None:
    result = CliRunner().invoke(main, ["--short", "--seed", "3", "--source", "mariadb"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "seed 3"
    assert lines[-1].endswith(" held")


@pytest.mark.mariadb
def test_without_a_check_of_the_product_its_attack_is_not_held() -> None:
    result = CliRunner().invoke(main, ["--can-fail", "--short"])
    assert result.exit_code == 0, result.output
    *said, last = result.stdout.splitlines()
    assert sum(": seen: " in line for line in said) == 4
    assert last == "4 checks switched off: 4 seen"
    assert any("silent loss" in line for line in said)
