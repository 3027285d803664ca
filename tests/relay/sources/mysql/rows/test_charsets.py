"""Each character set decoded as the server converts it, code by code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from databus.relay.sources.mysql.rows.charsets import byte_table, decoder_of
from tests.mariadb_server import Database

pytest_plugins = ["tests.mariadb", "tests.mysql"]

# What a column can have, by the most bytes of a character.
SINGLE_BYTE = [
    *("armscii8", "ascii", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866"),
    *("dec8", "geostd8", "greek", "hebrew", "hp8", "keybcs2", "koi8r", "koi8u", "latin1"),
    *("latin2", "latin5", "latin7", "macce", "macroman", "swe7", "tis620"),
]
TWO_BYTES = ["big5", "cp932", "euckr", "gb2312", "gbk", "sjis"]
THREE_BYTES = ["eucjpms", "ujis"]
UNICODE = ["ucs2", "utf16", "utf16le", "utf32", "utf8mb3", "utf8mb4"]
ON_MYSQL_ONLY = ["gb18030"]


def server_decodes(
    database: Database, charset: str, codes: Sequence[bytes]
) -> Iterator[tuple[bytes, str]]:
    """Yield the codes that are one character to the server, and which."""
    for start in range(0, len(codes), 1000):
        part = codes[start : start + 1000]
        terms = ",".join(
            f"HEX(CONVERT(CONVERT(x'{code.hex()}' USING {charset}) USING utf8mb4))" for code in part
        )
        (row,) = database.run(f"SELECT {terms}")
        for code, answer in zip(part, row, strict=True):
            text = bytes.fromhex(answer or "").decode()
            if len(text) == 1 and (text != "?" or code == b"?"):
                yield code, text


def decoded(charset: str, code: bytes) -> str | None:
    decode = decoder_of(charset)
    assert decode is not None
    try:
        return decode(code)
    except UnicodeDecodeError:
        return None


def every_code(charset: str) -> list[bytes]:
    codes = [bytes([code]) for code in range(256)]
    if charset not in SINGLE_BYTE:
        codes += [bytes([a, b]) for a in range(0x80, 256) for b in range(256)]
    if charset in THREE_BYTES:
        codes += [bytes([0x8F, a, b]) for a in range(0x80, 256) for b in range(0x80, 256)]
    return codes


@pytest.mark.mariadb
@pytest.mark.parametrize("charset", [*SINGLE_BYTE, *TWO_BYTES, *THREE_BYTES])
def test_every_code_is_what_the_server_makes_of_it(database: Database, charset: str) -> None:
    for code, text in server_decodes(database, charset, every_code(charset)):
        assert decoded(charset, code) == text, code.hex()
        assert decoded(charset, b"a" + code + b"z") == (decoded(charset, b"a") or "") + text + "z"


@pytest.mark.mysql
@pytest.mark.parametrize("charset", [*SINGLE_BYTE, *TWO_BYTES, *THREE_BYTES])
def test_mysql_makes_the_same_of_each_code(mysql_database: Database, charset: str) -> None:
    for code, text in server_decodes(mysql_database, charset, every_code(charset)):
        assert decoded(charset, code) == text, code.hex()


@pytest.mark.mysql
def test_gb18030_is_decoded_as_mysql_encodes_it(mysql_database: Database) -> None:
    points = [*range(0xD800), *range(0xE000, 0x10000), *range(0x10000, 0x110000, 97)]
    for start in range(0, len(points), 1000):
        part = [chr(point) for point in points[start : start + 1000]]
        terms = ",".join(
            f"HEX(CONVERT(_utf8mb4 x'{c.encode().hex()}' USING gb18030))" for c in part
        )
        (row,) = mysql_database.run(f"SELECT {terms}")
        assert [decoded("gb18030", bytes.fromhex(code)) for code in row] == part


def test_a_byte_that_is_no_character_is_an_error_and_not_guessed() -> None:
    assert decoded("dec8", b"\xa4") is None
    assert decoded("swe7", b"\xe4") is None
    assert decoded("eucjpms", b"\xa4\xa2\xff") is None
    assert decoded("big5", b"\xa4") is None


def test_single_byte_sets_have_a_table_and_no_others() -> None:
    for charset in SINGLE_BYTE:
        table = byte_table(charset) or ""
        for code in range(256):
            text = decoded(charset, bytes([code]))
            assert table[code] == ("\ufffe" if text is None else text)
    for charset in (*TWO_BYTES, *THREE_BYTES, *UNICODE, *ON_MYSQL_ONLY, "unknown"):
        assert byte_table(charset) is None


@pytest.mark.mariadb
def test_every_character_set_of_the_server_is_tested_here(database: Database) -> None:
    check_that_all_are_tested(database)


@pytest.mark.mysql
def test_every_character_set_of_mysql_is_tested_here(mysql_database: Database) -> None:
    check_that_all_are_tested(mysql_database)


def check_that_all_are_tested(database: Database) -> None:
    found = {str(row[0]) for row in database.run("SHOW CHARACTER SET")} - {"binary"}
    tested = {*SINGLE_BYTE, *TWO_BYTES, *THREE_BYTES, *UNICODE}
    assert found - set(ON_MYSQL_ONLY) == tested
    assert decoder_of("unknown") is None


@pytest.mark.parametrize(
    ("charset", "codec"),
    [
        ("utf8mb4", "utf-8"),
        ("utf8mb3", "utf-8"),
        ("ucs2", "utf-16-be"),
        ("utf16", "utf-16-be"),
        ("utf16le", "utf-16-le"),
        ("utf32", "utf-32-be"),
    ],
)
def test_unicode_sets_are_decoded(charset: str, codec: str) -> None:
    assert decoded(charset, "añ漢".encode(codec)) == "añ漢"
    assert decoded(charset, b"\xff") is None
