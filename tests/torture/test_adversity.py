"""The short form of the attacks: nothing lost, nothing wrong, nobody who looks well and is not."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from benchmarks.adversity.run import main, prove_that_it_can_fail


@pytest.mark.mariadb
def test_what_is_attacked_holds() -> None:
    result = CliRunner().invoke(main, ["--short", "--seed", "3", "--source", "mariadb"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == "seed 3"
    assert lines[-1].endswith(" held")


@pytest.mark.mariadb
def test_without_a_check_of_the_product_its_attack_is_not_held(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        prove_that_it_can_fail(["log-identity"], 1)
    said = capsys.readouterr().out
    assert ended.value.code == 0, said
    assert "silent loss" in said
