"""Write the tables of docs/performance.md: `python -m benchmarks.performance_page FILE…`.

Each FILE is what a benchmark's `--json` has written. A table stands between two comments,
`<!-- figures: NAME -->` and `<!-- end of figures -->`; `SECTIONS` says which figures it has. A
table none of whose figures is in the files stays as it is. A figure that is in several files is
taken from the last. The table `missed` has what misses its target in the others.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.peers.table import COLUMNS, lines_of
from benchmarks.shared.report import Figure, Target, show_number
from tools.repository import ROOT

PAGE = ROOT / "docs" / "performance.md"
_SECTION = re.compile(
    r"(<!-- figures: ([a-z ]+) -->\n).*?(?=^<!-- end of figures -->$)", re.DOTALL | re.MULTILINE
)
_TARGET = re.compile(r"([≥≤]) ([\d.,]+)$")
Lines = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one file, and the line that says where and when they were measured."""

    figures: list[Figure]
    origin: str


def read_run(text: str) -> Run:
    """Parse what `--json` wrote."""
    read = json.loads(text)
    return Run([_figure(one) for one in read["figures"]], _origin(read["host"]))


def _figure(read: dict[str, Any]) -> Figure:
    value = math.nan if read["value"] is None else float(read["value"])
    target = None
    if read["target"]:
        found = _TARGET.match(read["target"])
        assert found is not None, read["target"]
        bound = float(found[2].replace(",", ""))
        target = Target(">=" if found[1] == "≥" else "<=", bound)
    return Figure(read["name"], value, read["unit"], target)


def _origin(host: dict[str, Any]) -> str:
    return (
        f"Measured {host['at'][:10]} at commit {host['commit']} on {host['cpus']} cores of "
        f"{host['cpu']}, Python {host['python']}, load {host['load']:.1f} at the end."
    )


def _table(header: Sequence[str], lines: Lines) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines)) + "\n"


def _peers(figures: list[Figure]) -> str:
    return _table(COLUMNS, lines_of(figures))


def _plain(figures: list[Figure]) -> str:
    header = ("figure", "value", "target")
    return _table(header, [(f.name, _value(f), _verdict(f)) for f in figures])


def _value(figure: Figure) -> str:
    return f"{show_number(figure.value)} {figure.unit}".strip()


def _verdict(figure: Figure) -> str:
    if figure.target is None:
        return ""
    return f"{figure.target}: {'met' if figure.is_met else '**missed**'}"


@dataclass(frozen=True, slots=True)
class Section:
    """Which figures a table has, by a pattern of their names, and how it is written."""

    pattern: str
    write: Callable[[list[Figure]], str] = _plain

    def takes(self, figure: Figure) -> bool:
        """Return whether the figure is one of the table's."""
        return re.match(self.pattern, figure.name) is not None


SECTIONS = {
    "peers": Section(r"(bulk|single): ", _peers),
    "latency": Section(
        r".*: (commit to callback, (p50|p99|max)|share of a core, both|rate reached)$"
    ),
    "serving": Section(r"(relay|bare handler|relay / bare handler), "),
    "history": Section(
        r"history |sendfile by tornado|the ring|100 GB|capture with|bytes of the log"
    ),
    "seeding": Section(r"seeding|snapshot|MySQL: |Debezium: "),
    "growth": Section(r".*: exponent$"),
    "first start": Section(r"first start, "),
    "canal": Section(r"Canal's client, |building Canal's entries"),
}
MISSED = "missed"


def written(page: str, runs: Sequence[Run]) -> str:
    """Return the page with its tables written anew; raises KeyError for an unknown section."""

    def replace(match: re.Match[str]) -> str:
        made = None if match[2] == MISSED else _made(match[2], runs)
        return match[0] if made is None else f"{match[1]}{made}"

    def replace_missed(match: re.Match[str]) -> str:
        return f"{match[1]}{_missed(page)}" if match[2] == MISSED else match[0]

    page = _SECTION.sub(replace, page)
    return _SECTION.sub(replace_missed, page)


def _missed(page: str) -> str:
    """Return the lines of a page's other tables that miss their targets."""
    tables = [match[0] for match in _SECTION.finditer(page) if match[2] != MISSED]
    lines = [
        line for table in tables for line in table.splitlines() if line.endswith("**missed** |")
    ]
    if not lines:
        return "None of the figures above misses its target.\n"
    return _table(("figure", "value", "target"), []) + "\n".join([*lines, ""])


def _made(name: str, runs: Sequence[Run]) -> str | None:
    section = SECTIONS[name]
    # The figures, and where each was measured; the last file that has it counts.
    found: dict[tuple[str, str], tuple[Figure, str]] = {}
    for run in runs:
        mine = filter(section.takes, run.figures)
        found.update({(figure.name, figure.unit): (figure, run.origin) for figure in mine})
    if not found:
        return None
    origins = dict.fromkeys(at for _, at in found.values())
    return "\n".join((section.write([figure for figure, _ in found.values()]), *origins, ""))


@click.command(help=__doc__)
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False)
)
def main(files: tuple[Path, ...]) -> None:
    """Write the page."""
    runs = [read_run(file.read_text(encoding="utf-8")) for file in files]
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), runs), encoding="utf-8")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.performance_page")
