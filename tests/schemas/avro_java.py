"""Ask Avro 1.4.0 itself, and keep its answers.

    python -m tests.schemas.avro_java

fetches its archives (`tools.fetch_avro`) and writes `normal_forms/odd.jsonl` and `tables.jsonl`
anew, which `test_avro_normal_form` reads. Needs Java 11 to 18: an earlier one cannot run a
source file, and a later one prints some doubles in fewer digits.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.schemas.odd_schemas import odd_schemas
from tests.schemas.table_schemas import table_schemas
from tools import fetch_avro

HERE = Path(__file__).parent / "normal_forms"
ODD, TABLES = HERE / "odd.jsonl", HERE / "tables.jsonl"
RECORDED = HERE / "recorded.jsonl"  # from LinkedIn's relay; never written here


class Answer(NamedTuple):
    """A schema's text, and what Avro prints for it with the MD5; both None when it refuses."""

    text: str
    id: str | None
    normal_form: str | None


def ask(texts: Sequence[str]) -> list[Answer]:
    """Return Avro's answer to each text."""
    archives = fetch_avro.find()
    assert archives is not None
    lines = [base64.b64encode(text.encode()).decode() for text in texts]
    done = subprocess.run(
        ["java", "-cp", os.pathsep.join(map(str, archives)), HERE / "SchemaIds.java"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = done.stdout.splitlines()
    return [_answer(text, line) for text, line in zip(texts, answers, strict=True)]


def read(path: Path) -> list[Answer]:
    """Return kept answers."""
    with path.open(encoding="utf-8") as lines:
        return [Answer(*json.loads(line)) for line in lines]


def _answer(text: str, line: str) -> Answer:
    digest, _, encoded = line.partition(" ")
    if digest == "-":
        return Answer(text, None, None)
    return Answer(text, digest, base64.b64decode(encoded).decode())


def _write(path: Path, texts: Sequence[str]) -> None:
    lines = [json.dumps(answer, ensure_ascii=False) for answer in ask(texts)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    fetch_avro.fetch()
    _write(ODD, odd_schemas())
    _write(TABLES, table_schemas())
