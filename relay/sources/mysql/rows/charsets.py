"""Decodes the character sets of MySQL and MariaDB exactly as the servers do.

Python has a codec for most of them, but some differ from the server in a few
characters: `latin1` is cp1252 with its five gaps filled, `sjis` reads 815F as
a plain backslash. These are corrected here; sets without a Python codec are tables in
`rows/charset_tables.py`. A character set that cannot be decoded exactly has no entry, and
a column in it stops capture instead of delivering a guess. The tests compare each entry
with a real server.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

from databus.relay.sources.mysql.rows.charset_tables import MENDED_BYTES, MENDED_RUNS, UPPER_HALVES

BINARY = "binary"

_CODECS = {
    "ascii": "ascii",
    "armscii8": "ascii",
    "big5": "big5",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp932": "cp932",
    "dec8": "ascii",
    "eucjpms": "euc_jp",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "geostd8": "ascii",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "hp8": "hp_roman8",
    "keybcs2": "ascii",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "latin1": "cp1252",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "sjis": "shift_jis",
    "swe7": "ascii",
    "tis620": "ascii",
    "ucs2": "utf-16-be",
    "ujis": "euc_jp",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "utf8": "utf-8",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
}

_SEVERAL_BYTES = frozenset(
    {"cp932", "euckr", "gb18030", "gb2312", "gbk", "sjis", "ucs2", "utf16", "utf16le", "utf32"}
    | {"utf8", "utf8mb3", "utf8mb4"}
)
_BEYOND_BMP = frozenset({"gb18030", "utf16", "utf16le", "utf32", "utf8mb4", BINARY})
_OF_BMP = frozenset({"ucs2", "utf8", "utf8mb3"})
# It reads the full-width backslash as the plain one.
_PLAIN_BACKSLASH = "sjis"
# GB 18030 of 2005, and Python's is of 2000: two characters changed places.
_OF_2005 = {0x1E3F: 0xE7C7, 0xE7C7: 0x1E3F}
# One character: EUC has three bytes behind 8F, all else two.
_CODE = {
    "big5": re.compile(rb"[\x80-\xff].|.", re.DOTALL),
    "eucjpms": re.compile(rb"\x8f..|[\x80-\xff].|.", re.DOTALL),
    "ujis": re.compile(rb"\x8f..|[\x80-\xff].|.", re.DOTALL),
}

Decoder = Callable[[bytes], str]


@cache
def decoder_of(charset: str) -> Decoder | None:
    """Return a set's decoder (which raises UnicodeDecodeError); None for an unknown set."""
    codec = _CODECS.get(charset)
    if codec is None:
        return None
    if codec == "utf-8":
        return _decode_utf8
    if charset == "ascii":
        return _decode_ascii
    table: Any = byte_table(charset)  # text: not every library of types knows that it may be
    if table is not None:
        return lambda data: codecs.charmap_decode(data, "strict", table)[0]
    if charset in _CODE:
        return _code_decoder(charset, codec)
    decode = codecs.getdecoder(codec)
    if charset == _PLAIN_BACKSLASH:
        return lambda data: decode(data)[0].replace("\uff3c", "\\")
    if charset == "gb18030":
        return lambda data: decode(data)[0].translate(_OF_2005)
    return lambda data: decode(data)[0]


@cache
def byte_table(charset: str) -> str | None:
    """Return the 256 characters of a single-byte set; None for any other set.

    U+FFFE marks a byte without a character, as in `codecs.charmap_decode`.
    """
    codec = _CODECS.get(charset)
    if codec is None or charset in _CODE or charset in _SEVERAL_BYTES:
        return None
    mended = dict(enumerate(UPPER_HALVES.get(charset, ""), 128)) | MENDED_BYTES.get(charset, {})
    # The codec replaces undecodable bytes with U+FFFD.
    return "".join(
        mended.get(code) or bytes([code]).decode(codec, "replace").replace("\ufffd", "\ufffe")
        for code in range(256)
    )


@cache
def _codes_of(charset: str) -> dict[str, int]:
    table = byte_table(charset) or ""
    return {letter: code for code, letter in enumerate(table) if letter != "\ufffe"}


def stored_text(text: str, charset: str) -> str:
    """Return a text as a server stores it: with `?` for characters not in the set.

    Raises ValueError when the characters of the set are not known.
    """
    if charset in _BEYOND_BMP:
        return text
    if charset in _OF_BMP:
        return "".join(letter if letter <= "\uffff" else "?" for letter in text)
    if byte_table(charset) is not None:
        known = _codes_of(charset)
        return "".join(letter if letter in known else "?" for letter in text)
    stored_bytes(text, charset)
    return text


def stored_bytes(text: str, charset: str) -> bytes:
    """Return the bytes of a text in a character set; raises ValueError when not certain."""
    if charset == BINARY:
        return text.encode()
    if byte_table(charset) is not None:
        codes = _codes_of(charset)
        if all(letter in codes for letter in text):
            return bytes(codes[letter] for letter in text)
    decode = decoder_of(charset)
    with suppress(UnicodeError):
        data = text.encode(_CODECS.get(charset, "ascii"))
        if decode is not None and decode(data) == text:
            return data
    raise ValueError(f"what {text!r} is in character set {charset} is not known")


def exact_decoder(charset: str | None) -> Decoder | None:
    """Return the decoder of a column's text; None for a column of bytes.

    Raises ValueError for a set that cannot be decoded exactly.
    """
    if charset in (None, BINARY):
        return None
    decode = decoder_of(charset or "")
    if decode is None:
        raise ValueError(
            f"character set {charset} cannot be decoded exactly; convert the column to utf8mb4"
        )
    return decode


def _decode_ascii(data: bytes) -> str:
    return str(data, "ascii")


def _decode_utf8(data: bytes) -> str:
    return str(data, "utf-8")


class _Codes(dict[bytes, str]):
    """The characters of a set by code: the corrected ones, and those decoded so far."""

    def __init__(self, codec: str, mended: Iterator[tuple[bytes, str]]) -> None:
        super().__init__(mended)
        self._codec = codec

    def __missing__(self, code: bytes) -> str:
        text = self[code] = code.decode(self._codec)
        return text


def _code_decoder(charset: str, codec: str) -> Decoder:
    codes, find = _Codes(codec, _mended(charset)), _CODE[charset].findall

    def decode(data: bytes) -> str:
        if data.isascii():
            return data.decode("ascii")
        return "".join([codes[code] for code in find(data)])

    return decode


def _mended(charset: str) -> Iterator[tuple[bytes, str]]:
    for first, text in MENDED_RUNS.get(charset, {}).items():
        for code, character in enumerate(text, first):
            yield code.to_bytes(2 if code < 0x10000 else 3, "big"), character
    if charset in ("eucjpms", "ujis"):
        # Ten rows of 94 in each plane are the user's own, and so they are in Unicode.
        for number in range(2 * 940):
            row, cell = divmod(number % 940, 94)
            prefix = b"\x8f" if number >= 940 else b""
            yield prefix + bytes((0xF5 + row, 0xA1 + cell)), chr(0xE000 + number)
