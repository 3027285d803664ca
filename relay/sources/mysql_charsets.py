"""Character sets of MySQL and MariaDB, decoded as the server itself converts them.

Python has a codec for most of them, but some differ from the server in a few
characters: `latin1` is cp1252 with its five holes filled, `sjis` reads 815F as
a plain backslash. Those are mended here; a character set that cannot be decoded
exactly has no entry, and a column in it stops capture rather than be guessed.
The tests compare each entry with what a real server answers.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from functools import cache

BINARY = "binary"

_CODECS = {
    "ascii": "ascii",
    "big5": "big5",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp932": "cp932",
    "euckr": "cp949",
    "gb18030": "gb18030",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "hp8": "hp_roman8",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "latin1": "cp1252",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "sjis": "shift_jis",
    "ucs2": "utf-16-be",
    "ujis": "euc_jp",
    "utf16": "utf-16-be",
    "utf16le": "utf-16-le",
    "utf32": "utf-32-be",
    "utf8": "utf-8",
    "utf8mb3": "utf-8",
    "utf8mb4": "utf-8",
}

# Bytes of a single-byte set that the server maps otherwise than Python's codec.
_MENDED_BYTES: dict[str, dict[int, str]] = {
    "cp866": {0xFC: "\u207f", 0xFD: "\u00b2"},
    "greek": {0xA1: "\u02bd", 0xA2: "\u02bc"},
    "hebrew": {0xAF: "\u203e"},
    "koi8u": {0x95: "\u2022"},
    "latin1": {code: chr(code) for code in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
}
# Both sets read the full-width backslash as the plain one.
_PLAIN_BACKSLASH = frozenset({"sjis", "ujis"})

Decoder = Callable[[bytes], str]


@cache
def decoder_of(charset: str) -> Decoder | None:
    """Return what turns a set's bytes into text (UnicodeDecodeError), or None if nothing does."""
    codec = _CODECS.get(charset)
    if codec is None:
        return None
    if codec == "utf-8":
        return _decode_utf8
    if charset in _MENDED_BYTES:
        return _table_decoder(charset, codec)
    decode = codecs.getdecoder(codec)
    if charset in _PLAIN_BACKSLASH:
        return lambda data: decode(data)[0].replace("\uff3c", "\\")
    return lambda data: decode(data)[0]


def exact_decoder(charset: str | None) -> Decoder | None:
    """Return what turns a column's bytes into text; None for a column of bytes.

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


def _decode_utf8(data: bytes) -> str:
    return str(data, "utf-8")


def _table_decoder(charset: str, codec: str) -> Decoder:
    mended = _MENDED_BYTES[charset]
    # U+FFFE is what charmap_decode takes for "no such character".
    table = "".join(
        mended.get(code) or bytes([code]).decode(codec, "replace").replace("\ufffd", "\ufffe")
        for code in range(256)
    )
    return lambda data: codecs.charmap_decode(data, "strict", table)[0]
