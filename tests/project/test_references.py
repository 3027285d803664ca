"""The generated pages are what `make docs` would write now."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from databus.cli.main import main
from tools.generate_references import FOLDER, PAGES
from tools.repository import PACKAGED, ROOT


def commands(
    command: click.Command, parent: click.Context | None = None, name: str = "databus"
) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its full name."""
    context = click.Context(command, info_name=name, parent=parent)
    yield context.command_path, command
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from commands(found, context, inner)


# A command keeps how it was called first, and a test may have called it past `databus`.
WRITE_ALL = """
import json
from tools.generate_references import PAGES
print(json.dumps({name: write() for name, write in PAGES.items()}))
"""


@pytest.fixture(scope="module")
def generated() -> dict[str, str]:
    """What a process of its own writes."""
    command = [sys.executable, "-c", WRITE_ALL]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    pages: dict[str, str] = json.loads(done.stdout)
    return pages


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_generated_page_is_current(page: str, generated: dict[str, str]) -> None:
    written = (FOLDER / page).read_text(encoding="utf-8")
    assert written == generated[page], f"docs/reference/{page} is not current: run make docs"


def test_no_command_advises_a_file_that_only_a_checkout_has() -> None:
    folders = "|".join(["docs", "examples", "tests", "tools", "benchmarks", *PACKAGED])
    advised = re.compile(rf"(?<![\w./:])(?:{folders})/[\w./]+\.\w+")
    found = {}
    for path, command in commands(main):
        context = click.Context(command, info_name=path)
        if files := advised.findall(command.get_help(context)):
            found[path] = files
    assert found == {}


def test_every_command_says_what_it_does_and_gives_an_example() -> None:
    without = [
        path
        for path, command in commands(main)
        if not isinstance(command, click.Group) and f"Example: `{path}" not in (command.help or "")
    ]
    assert without == []


def test_every_option_is_described() -> None:
    without = [
        f"{path} {option.opts[0]}"
        for path, command in commands(main)
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert without == []
