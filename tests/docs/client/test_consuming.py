"""Every example of docs/consuming.md, as a program against a relay."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docs.markdown import (
    block_for,
    blocks_of,
)
from tests.docs.shop import reader_of_three_rows
from tests.docs.terminal import Reader
from tools.repository import ROOT

PAGE = ROOT / "docs" / "consuming.md"
CLIENT = block_for(PAGE, "function").text.split("@client", maxsplit=1)[0]
# Two versions of a table, and a consumer's rows of the first.
ALTER = """from databus.client import Consumer
from databus.schemas.table import Column, Table
from databus.schemas.table_change import TableChange, shape_id, with_change
from databus.schemas.table_schema import avro_schema

{alter}

columns = [Column("id", "integer", 0, nullable=False, key_position=0), Column("vip", "integer", 1)]
before, now = (avro_schema(Table("shop.vips", tuple(columns[:n]), "sqlite")) for n in (1, 2))
after = with_change(now, TableChange(5, shape_id(before), added={"vip": 7}))
replica = Replica()
replica.rows = {1: {"id": 1}}
replica.on_schema_change("shop.vips", before, after, False)
print(replica.rows)
"""
PROGRAMS = {
    "alter": (ALTER, ["{1: {'id': 1, 'vip': 7}}"]),
    "function": ("{function}", ["insert {'id': 4} {'id': 4, 'customer': 1, 'status': 'paid'}"]),
    "loop": (CLIENT + "{loop}", ["… insert {'id': 4, 'customer': 1, 'status': 'paid'}"]),
    "async": (
        "import asyncio\n" + CLIENT + "{async}\n\nasyncio.run(follow())\n",
        ["window … has 2 events"],
    ),
    "into": (
        CLIENT + "{into}",
        ["Order(id=4, status='paid', tags=())", "Order(id=5, status='paid', tags=())"],
    ),
    "commit": (CLIENT + "{commit}", ["stored 2 rows"]),
    "coroutine": ("{coroutine}", ["awaited {'id': 4}", "awaited {'id': 5}"]),
    "dead letters": (CLIENT + "{dead letters}", ["shipped {'id': 5}"]),
    "batches": (
        CLIENT + "{batches}",
        ["1 transactions up to …", "[{'id': 1, 'name': 'Ada'}] 3"],
    ),
    "arrow": (CLIENT + "{arrow}", ["2 rows of ['id', 'customer', 'status', '_databus']"]),
    "batch function": (CLIENT + "{batch function}", ["[4, 5]"]),
    "class": (CLIENT + "{class}", ["transaction … changed 3 rows"]),
    # There is no bootstrap server here: docs/bootstrap.md has one.
    "bootstrap": (
        "from databus.client import Consumer, DatabusClient\n\n{bootstrap}",
        [
            "upsert shop.customers {'id': 1}",
            "upsert shop.orders {'id': 4}",
            "upsert shop.orders {'id': 5}",
        ],
    ),
    "condition": (CLIENT + "{condition}", ["paid {'id': 5}"]),
    "look": ("{look}", ["insert {'id': 4}", "warehouse online", "paused"]),
    "filter": (
        CLIENT + "{class}{filter}\nclient.run()\n",
        ["transaction … changed 1 rows"],
    ),
}


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody with a relay that holds one transaction of three rows."""
    with reader_of_three_rows(tmp_path_factory.mktemp("consuming")) as reader:
        yield reader


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_example_runs_and_prints_what_was_committed(relay: Reader, name: str) -> None:
    program, expected = PROGRAMS[name]
    for block in blocks_of(PAGE):
        text = block.text
        if name == "filter" and block.test == "class":
            # The class alone: two registrations would print at the same time.
            text = text.split("client.register")[0]
        program = program.replace(f"{{{block.test}}}", text)
    program = program.replace('start="beginning"', 'start="earliest"')
    # A folder each, for they would share a checkpoint.
    folder = relay.folder / name
    folder.mkdir()
    (folder / "program.py").write_text(relay.localized(program))
    with relay.opened(name) as terminal:
        terminal.paste(f"cd '{name}' && python -u program.py\n")
        terminal.wait_for(expected)
        assert "Traceback" not in terminal.output


def test_every_example_is_taken() -> None:
    assert {block.test for block in blocks_of(PAGE)} == set(PROGRAMS)
