"""Canal's check of a password: `scramble411`, as MySQL's native password. Pure.

The server has SHA1(SHA1(password)) only. A client proves that it has the password without sending
it: with SHA1(seeds ‖ SHA1(SHA1(password))) XOR SHA1(password), for the random seeds of the server's
handshake.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping

from databus.conf.doors.canal_settings import CanalSettings
from databus.daemon.tokens import private_lines
from databus.schemas.errors import SettingsError

SEED_BYTES = 8
HASH_BYTES = 20
_HASH_ADVICE = (
    "the hash of a password is 40 hexadecimal digits, SHA1 of SHA1, as in Canal's `canal.passwd`; "
    "`printf %s PASSWORD | openssl sha1 -binary | openssl sha1` prints it"
)


class Login:
    """Who may log in. `password_hash` b"" admits everybody."""

    def __init__(self, user: str, password_hash: bytes, *, takes_plain: bool = False) -> None:
        """With `takes_plain` the password itself is taken, too: canal-python sends that."""
        self.user, self._hash, self._takes_plain = user, password_hash, takes_plain

    def admits(self, user: str, sent: bytes, seeds: bytes) -> bool:
        """Return whether a login is right."""
        is_user = not self.user or hmac.compare_digest(self.user.encode(), user.encode())
        return self._is_password(sent, seeds) and is_user

    def advice(self, sent: bytes) -> str:
        """Return what to do about a refused password, by its form alone; "" if that is usual."""
        if self._takes_plain or not self._hash or _token(sent):
            return ""
        return (
            ": the password came in clear text, or none came, and this server takes only what "
            "Canal's own clients make of it; `plain_passwords = true` in its [canal] takes both"
        )

    def _is_password(self, sent: bytes, seeds: bytes) -> bool:
        if not self._hash:
            return True
        if self._takes_plain and hmac.compare_digest(_sha1(_sha1(sent)), self._hash):
            return True
        token = _token(sent)
        if not token:
            return False
        return hmac.compare_digest(_sha1(_xor(token, _sha1(seeds + self._hash))), self._hash)


def scramble(password: bytes, seeds: bytes) -> bytes:
    """Return what a client sends: the token as hexadecimal text."""
    once = _sha1(password)
    return _xor(once, _sha1(seeds + _sha1(once))).hex().encode()


def hash_of(password: bytes) -> bytes:
    """Return the hash that a server has of a password."""
    return _sha1(_sha1(password))


def read_login(settings: CanalSettings, environ: Mapping[str, str] | None = None) -> Login:
    """Return who may log in, by the settings; raises SettingsError."""
    variables = os.environ if environ is None else environ
    found = b""
    if settings.password_hash_file is not None:
        lines = private_lines("canal.password_hash_file", settings.password_hash_file)
        found = _parse_hash("canal.password_hash_file", "".join(lines[:1]))
    elif settings.password_hash_env is not None:
        name = settings.password_hash_env
        if not variables.get(name):
            raise SettingsError(f"canal.password_hash_env: variable {name} is not set")
        found = _parse_hash("canal.password_hash_env", variables[name])
    return Login(settings.user, found, takes_plain=settings.plain_passwords)


def _parse_hash(key: str, text: str) -> bytes:
    try:
        # What openssl prints has a name before the hash.
        found = bytes.fromhex(text.strip().rpartition("= ")[2].removeprefix("*"))
    except ValueError:
        found = b""
    if len(found) != HASH_BYTES:
        raise SettingsError(f"{key}: it has no hash of a password: {_HASH_ADVICE}")
    return found


def _token(sent: bytes) -> bytes:
    """Return the token that a client sent; b"" if it is none."""
    try:
        found = bytes.fromhex(sent.decode("ascii"))
    except ValueError:
        return b""
    return found if len(found) == HASH_BYTES else b""


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
