"""All mutants of a module, and samples of the mutants of several. Pure."""

from __future__ import annotations

import ast
import difflib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

from benchmarks.mutation.operators import operators


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module, in line `line` (from 1) of `function`."""

    path: str
    operator: str
    occurrence: int
    line: int
    function: str = ""  # with its class; "" outside of any

    @property
    def name(self) -> str:
        """Its name, for running it again on the same state of the module."""
        return f"{self.path}:{self.line} {self.operator}#{self.occurrence}"


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Yield each change of a module once; two operators may change the same place."""
    nodes = list(ast_nodes(get_ast(source)))
    functions = list(_functions(ast.parse(source)))
    for name, operator in _operators().items():
        spans = [span for node in nodes for span in operator.mutation_positions(node)]
        for occurrence, ((line, _), _) in enumerate(spans):
            within = [inside for begin, end, inside in functions if begin <= line <= end]
            yield Mutant(path, name, occurrence, line, within[-1] if within else "")


def mutate(source: str, mutant: Mutant) -> str | None:
    """Return the changed source; None when no behaviour can differ.

    A change of an annotation or of a docstring is none, and neither is one that
    does not compile: no test is needed to notice it.
    """
    changed: str | None = mutate_code(source, _operators()[mutant.operator], mutant.occurrence)
    if changed is None:
        return None
    try:
        is_same = _behaviour(changed) == _behaviour(source)
    except SyntaxError:
        return None
    return None if is_same else changed


def sample(sources: Mapping[str, str], count: int, seed: int) -> list[Mutant]:
    """Choose a number of mutants; each line of all modules is equally likely.

    By line, not by mutant: a comparison alone can be changed in ten ways.
    """
    random = Random(seed)
    by_line: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for path, source in sources.items():
        for mutant in mutants_of(path, source):
            by_line[path, mutant.line].append(mutant)
    for found in by_line.values():
        random.shuffle(found)
    chosen: list[Mutant] = []
    while len(chosen) < count and by_line:
        lines = sorted(by_line)
        random.shuffle(lines)
        chosen += _one_each(lines, by_line, sources, count - len(chosen))
    return chosen


def difference(source: str, changed: str) -> str:
    """Return the lines that differ, as `- old` and `+ new`."""
    lines = difflib.ndiff(source.splitlines(), changed.splitlines())
    return "\n".join(
        f"{line[:2]}{line[2:].strip()}" for line in lines if line.startswith(("- ", "+ "))
    )


def _functions(node: ast.AST, inside: str = "") -> Iterator[tuple[int, int, str]]:
    """Yield the first and last line and the name of each function, the outer ones first."""
    for one in ast.iter_child_nodes(node):
        name = inside
        if isinstance(one, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{inside}.{one.name}".lstrip(".")
            if not isinstance(one, ast.ClassDef):
                yield one.lineno, one.end_lineno or one.lineno, name
        yield from _functions(one, name)


def _one_each(
    lines: Iterable[tuple[str, int]],
    by_line: dict[tuple[str, int], list[Mutant]],
    sources: Mapping[str, str],
    wanted: int,
) -> list[Mutant]:
    chosen: list[Mutant] = []
    for key in lines:
        if len(chosen) == wanted:
            break
        left = by_line[key]
        while left:
            mutant = left.pop()
            if mutate(sources[key[0]], mutant) is not None:
                chosen.append(mutant)
                break
        if not left:
            del by_line[key]
    return chosen


@cache
def _operators() -> dict[str, Operator]:
    return operators()


def _behaviour(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
            for one in ast.walk(node.args):
                if isinstance(one, ast.arg):
                    one.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [one for one in node.body if not _is_text(one)]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [*node.body[:-1], *(one for one in node.body[-1:] if not _is_end(one))]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_end(node: ast.stmt) -> bool:
    """Return whether a function's last statement has no effect."""
    if isinstance(node, ast.Return):
        return node.value is None or (
            isinstance(node.value, ast.Constant) and node.value.value is None
        )
    return isinstance(node, ast.Pass)


__all__: Sequence[str] = ("Mutant", "difference", "mutants_of", "mutate", "sample")
