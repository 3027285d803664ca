"""Runs the tests of one mutant in a process of its own.

The process is a fork of one that has imported what the tests need, but nothing of
`databus`: the mutant is compiled in place of its module when that is imported, and
no file is changed. What tests start as processes of their own is not mutated.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import time
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

_MEMORY_BYTES = 6 << 30
_LOOK_S = 0.02
# What pytest exits with.
_PASSED, _NO_TESTS = 0, 5


class Verdict(StrEnum):
    """The outcome of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"  # killed, too: the tests would have hung


@dataclass(frozen=True, slots=True)
class Outcome:
    """A verdict, the seconds it took, and what pytest printed."""

    verdict: Verdict
    took_s: float
    output: str


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import finder that loads one module from another source than its file's."""

    def __init__(self, name: str, path: Path, source: str) -> None:
        self._name, self._path, self._source = name, path, source

    def find_spec(
        self,
        fullname: str,
        path: object = None,  # noqa: ARG002
        target: object = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Find only that module."""
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        """Create the module as usual."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the changed source."""
        exec(compile(self._source, str(self._path), "exec"), module.__dict__)


def try_tests(
    path: Path, source: str, tests: Sequence[str], root: Path, log: Path, limit_s: float
) -> Outcome:
    """Run the tests on a module whose source is `source`; raises ValueError when there are none."""
    begun_s = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_tested(path, source, tests, root, log, limit_s)
    status = _wait(child, begun_s + limit_s)
    took_s = time.monotonic() - begun_s
    output = log.read_text(errors="replace") if log.exists() else ""
    if status is None:
        return Outcome(Verdict.TIMED_OUT, took_s, output)
    code = os.waitstatus_to_exitcode(status)
    if code == _NO_TESTS:
        raise ValueError(f"{', '.join(tests)}: no tests; {output}")
    return Outcome(Verdict.SURVIVED if code == _PASSED else Verdict.KILLED, took_s, output)


def _wait(child: int, deadline_s: float) -> int | None:
    """Return a child's exit status; None if it had to be killed."""
    while time.monotonic() < deadline_s:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            _end_group(child)
            return status
        time.sleep(_LOOK_S)
    _end_group(child)
    os.waitpid(child, 0)
    return None


def _end_group(child: int) -> None:
    """Kill the whole process group, including what the tests have started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def _be_tested(
    path: Path, source: str, tests: Sequence[str], root: Path, log: Path, limit_s: float
) -> None:
    code = 1
    try:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(root)
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s) + 60,) * 2)
        name = "databus." + ".".join(path.relative_to(root).with_suffix("").parts)
        sys.meta_path.insert(0, Mutated(name, path, source))
        import pytest

        options = ["-x", "-q", "--tb=line", "-p", "no:xdist", "--hypothesis-seed=0"]
        # Imported before pytest was, which is why it is fast.
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = int(pytest.main([*options, *tests]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
