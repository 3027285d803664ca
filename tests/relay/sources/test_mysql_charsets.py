"""Each character set decoded as the server converts it, code by code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from databus.relay.sources.mysql_charsets import decoder_of
from tests.mariadb_server import Database

pytest_plugins = ["tests.mariadb"]

SINGLE_BYTE = [
    *("ascii", "cp1250", "cp1251", "cp1256", "cp1257", "cp850", "cp852", "cp866", "greek"),
    *("hebrew", "hp8", "koi8r", "koi8u", "latin1", "latin2", "latin5", "latin7", "macce"),
    "macroman",
]
SEVERAL_BYTES = ["big5", "cp932", "euckr", "gb2312", "gbk", "sjis", "ujis"]
REFUSED = ["armscii8", "dec8", "eucjpms", "geostd8", "keybcs2", "swe7", "tis620"]
REPLACEMENT = "\ufffd"


def server_decodes(database: Database, charset: str, codes: Sequence[bytes]) -> list[str | None]:
    """Return what the server makes of each code; None for what is no character."""
    found: list[str | None] = []
    for start in range(0, len(codes), 500):
        part = codes[start : start + 500]
        terms = ",".join(f"HEX(CONVERT(_{charset} x'{c.hex()}' USING utf8mb4))" for c in part)
        (row,) = database.run(f"SELECT {terms}")
        found += [_text(code, value) for code, value in zip(part, row, strict=True)]
    return found


def _text(code: bytes, value: Any) -> str | None:
    text = bytes.fromhex(value).decode() if value is not None else ""
    return None if text in ("", REPLACEMENT) or (text == "?" and code != b"?") else text


def decoded(charset: str, code: bytes) -> str | None:
    decode = decoder_of(charset)
    assert decode is not None
    try:
        return decode(code)
    except UnicodeDecodeError:
        return None


@pytest.mark.mariadb
@pytest.mark.parametrize("charset", SINGLE_BYTE)
def test_every_byte_is_what_the_server_makes_of_it(database: Database, charset: str) -> None:
    codes = [bytes([code]) for code in range(128 if charset == "ascii" else 256)]
    for code, text in zip(codes, server_decodes(database, charset, codes), strict=True):
        if text is not None:
            assert decoded(charset, code) == text


@pytest.mark.mariadb
@pytest.mark.parametrize("charset", SEVERAL_BYTES)
def test_no_pair_of_bytes_is_decoded_otherwise_than_by_the_server(
    database: Database, charset: str
) -> None:
    kanji = [
        bytes([a, b]) for a in range(0x81, 0xFE) for b in (*range(0x40, 0x7F), *range(0x80, 0xFE))
    ]
    codes = []
    for code in kanji:
        try:
            # What the server itself refuses cannot be in a column.
            codes += [code] if len(code.decode(_python_codec(charset))) == 1 else []
        except UnicodeDecodeError:
            continue
    for code, text in zip(codes, server_decodes(database, charset, codes), strict=True):
        if text is not None:
            assert decoded(charset, code) == text


def _python_codec(charset: str) -> str:
    return {"euckr": "cp949", "sjis": "shift_jis", "ujis": "euc_jp"}.get(charset, charset)


@pytest.mark.parametrize("charset", REFUSED)
def test_what_cannot_be_decoded_exactly_has_no_decoder(charset: str) -> None:
    assert decoder_of(charset) is None


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
