"""The command's end: every harm is counted in its last line, and is its exit status."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks.adversity import run
from benchmarks.adversity.attacks import Attack, all_attacks
from benchmarks.adversity.disarming import CHECKS, owner_of
from benchmarks.adversity.judge import Cause, Evidence, Look, judge
from benchmarks.torture.log import Delivery

START = Delivery(1, "start", -1, [])
WINDOWS = [Delivery(1, "window", tx * 10, [(tx, 1, 1)]) for tx in (1, 2, 3)]
WELL = Look(20.0, "relay", 200, "{}")
CAUSE = Cause("the database is dead", 0.0, 30.0, 10.0, ("relay",))
HARMS = {
    "a loss in the middle": Evidence([START, WINDOWS[0], WINDOWS[2]], 3),
    "a loss at the end": Evidence([START, *WINDOWS], 4),
    "a wrong row": Evidence([START, Delivery(1, "problem", 5, [], "wrong row {}")]),
    "a torn window": Evidence([START, Delivery(1, "window", 10, [(1, 1, 2)])], 1),
    "false health": Evidence([START], looks=[WELL], causes=[CAUSE]),
    "a permanent stop": Evidence([START], broken=["waited 60 s in vain: the relay is error"]),
    "a process that ended": Evidence([START], ended={"relay": 1}),
}


def run_with(monkeypatch: pytest.MonkeyPatch, *evidence: Evidence) -> Result:
    """Run the command on so many attacks, of which this is what was seen."""
    chosen = [(attack, attack.kinds[0]) for attack in all_attacks()[: len(evidence)]]
    left = iter(evidence)

    def attack_once(attack: Attack, kind: Any, seed: int, *_: object, **__: object) -> run.Verdict:
        return run.Verdict(attack, kind, seed, "", judge(next(left)), 1.0)

    monkeypatch.setattr(run, "chosen_attacks", lambda *_, **__: chosen)
    monkeypatch.setattr(run, "attack_once", attack_once)
    return CliRunner().invoke(run.main, ["--seed", "1"])


def test_attacks_that_were_held_are_counted_and_the_command_ends_with_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Evidence([START, *WINDOWS], 3)
    result = run_with(monkeypatch, held, held)
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "2 attacks: 2 held")


@pytest.mark.parametrize("harm", HARMS)
def test_one_harm_is_counted_and_the_command_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    result = run_with(monkeypatch, Evidence([START, *WINDOWS], 3), HARMS[harm])
    failed = all_attacks()[1]
    last = f"2 attacks: 1 held, 1 failed: {failed.name}/{failed.kinds[0]}"
    assert (result.exit_code, result.output.splitlines()[-1]) == (1, last)


def test_each_switch_names_attacks_and_parts_of_the_product_that_there_are() -> None:
    known = {f"{attack.name}/{kind}" for attack, kind in run.chosen_attacks()}
    for name, switch in CHECKS.items():
        assert switch.attacks, name
        assert set(switch.attacks) <= known, name
        assert all(owner_of(target) for target in switch.patches), name


def test_an_attack_that_cannot_be_done_is_a_failure_and_not_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Scene:
        saw = ""

        def __init__(self, *_: object) -> None:
            self.problems: list[str] = []

        def __enter__(self) -> Scene:
            return self

        def __exit__(self, *_: object) -> None: ...

        def found(self, problem: str) -> None:
            self.problems.append(problem)

        def verdict(self) -> list[str]:
            return self.problems

        def tell(self) -> str:
            return ""

    def fail(_scene: object) -> None:
        raise OSError("no port is free")

    monkeypatch.setattr(run, "Scene", Scene)
    attack = Attack("made-up", 1, "nothing", fail)
    found = run.attack_once(attack, "mariadb", 1, None)  # type: ignore[arg-type]
    assert found.problems == ["it could not be done: OSError('no port is free')"]
