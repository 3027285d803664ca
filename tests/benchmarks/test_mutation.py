"""The mutants of the core's rules: which there are, and that tests are run on them."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest

from benchmarks.mutation.mutants import Mutant, difference, mutants_of, mutate, sample
from benchmarks.mutation.run import Tried, equivalents, held_by, killed_share
from benchmarks.mutation.trial import Verdict
from tools.repository import ROOT

SOURCE = dedent('''
    """A module."""
    from __future__ import annotations

    def is_gone(scn: int | None, oldest: int) -> bool:
        """Say whether it is."""
        if scn is not None and scn < oldest:
            return True
        print(scn)
        return False
''').lstrip()


def changes(source: str) -> set[str]:
    found = (mutate(source, mutant) for mutant in mutants_of("m.py", source))
    return {difference(source, changed) for changed in found if changed is not None}


@pytest.mark.parametrize(
    "change",
    [
        "- if scn is not None and scn < oldest:\n+ if scn is not None:",
        "- if scn is not None and scn < oldest:\n+ if scn < oldest:",
        "- if scn is not None and scn < oldest:\n+ if scn is not None and scn <= oldest:",
        "- if scn is not None and scn < oldest:\n+ if scn is not None or scn < oldest:",
        "- return True\n+ return False",
        "- return True\n+ pass",
        "- print(scn)\n+ pass",
    ],
)
def test_conditions_operands_and_statements_are_changed(change: str) -> None:
    assert change in changes(SOURCE)


def test_annotations_and_docstrings_are_not() -> None:
    changed = "\n".join(changes(SOURCE))
    assert "def is_gone" not in changed
    assert '"""' not in changed


def test_a_sample_is_the_same_for_the_same_seed_and_has_each_line_before_any_twice() -> None:
    lines = {m.line for m in mutants_of("m.py", SOURCE) if mutate(SOURCE, m) is not None}
    chosen = sample({"m.py": SOURCE}, len(lines), 5)
    assert chosen == sample({"m.py": SOURCE}, len(lines), 5)
    assert {mutant.line for mutant in chosen} == lines


def test_a_survivor_that_is_explained_does_not_count() -> None:
    mutant = Mutant("m.py", "RemoveStatement", 0, 1)
    killed, survived = (Tried(mutant, "", v, 1.0) for v in (Verdict.KILLED, Verdict.SURVIVED))
    explained = Tried(mutant, "", Verdict.SURVIVED, 1.0, "a sum is the same in any order")
    assert killed_share([killed, explained]) == 1.0
    assert killed_share([killed, survived, explained]) == 0.5


def test_the_modules_and_tests_that_are_named_are_there() -> None:
    for path, tests in held_by().items():
        assert [name for name in (path, *tests) if not (ROOT / name).is_file()] == []


def test_a_mutant_knows_its_function_wherever_that_is() -> None:
    for source in (
        SOURCE,
        SOURCE.replace("def is_gone", "def other() -> None:\n    pass\n\ndef is_gone"),
    ):
        inside = {
            m.function
            for m in mutants_of("m.py", source)
            if "if scn" in difference(source, mutate(source, m) or source)
        }
        assert inside == {"is_gone"}


def test_what_is_named_as_equivalent_is_in_the_module() -> None:
    for (path, function, operator, change), reason in equivalents().items():
        source = (ROOT / path).read_text(encoding="utf-8")
        before = [line[2:] for line in change.splitlines() if line.startswith("- ")]
        assert [line for line in before if line not in source] == [], path
        assert f"def {function.rpartition('.')[2]}(" in source or not function
        assert operator
        assert reason.endswith(".")


def test_tests_are_run_on_mutants_in_processes_of_their_own() -> None:
    command = [sys.executable, "-m", "benchmarks.mutation"]
    done = subprocess.run(
        [*command, "--sample", "2", "--only", "schemas/checkpoint.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "seed 1: 2 mutants" in done.stdout, done.stdout + done.stderr
