"""Reads tokens from private files, or from the environment.

No error and no log contains a token.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from databus.conf.settings import HttpSettings, ServerAccessSettings
from databus.daemon.access import Access, ReadLimit
from databus.daemon.log_setup import hide
from databus.schemas.errors import SettingsError

MIN_TOKEN_CHARS = 16
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # as RFC 6750 has it after "Bearer"
_RULE = (
    f"a token has {MIN_TOKEN_CHARS} or more characters, of letters, digits and -._~+/=; "
    "`openssl rand -base64 24` makes one"
)


def make_access(settings: HttpSettings, environ: Mapping[str, str] | None = None) -> Access:
    """Return the tokens that a server's settings name; raises SettingsError."""
    variables = os.environ if environ is None else environ

    def tokens(kind: str, file: Path | None, variable: str | None) -> list[str]:
        found = _file_tokens(f"http.{kind}_tokens_file", file) if file else []
        if variable:
            found.append(_env_token(f"http.{kind}_token_env", variable, variables))
        return found

    readers = tokens("reader", None, settings.reader_token_env)
    limits: dict[str, ReadLimit] = {}
    if settings.reader_tokens_file is not None:
        found, limits = _readers("http.reader_tokens_file", settings.reader_tokens_file)
        readers = [*found, *readers]
    admins = tokens("admin", settings.admin_tokens_file, settings.admin_token_env)
    return Access(readers, admins, limits)


def read_token(settings: ServerAccessSettings, environ: Mapping[str, str] | None = None) -> str:
    """Return a client's token; empty without one. Raises SettingsError.

    Of a file with several tokens, as a server has one, it is the first that is for all sources.
    """
    if settings.token_file is not None:
        found, limits = _readers("token_file", settings.token_file)
        return next((token for token in found if token not in limits), found[0])
    if settings.token_env is not None:
        variables = os.environ if environ is None else environ
        return _env_token("token_env", settings.token_env, variables)
    return ""


def has_whole_reader(file: Path) -> bool:
    """Return whether a file of readers' tokens has one for all sources; raises SettingsError."""
    found, limits = _readers("http.reader_tokens_file", file)
    return len(found) > len(limits)


def _readers(key: str, path: Path) -> tuple[list[str], dict[str, ReadLimit]]:
    """Return the readers' tokens of a file, and the limits of those with patterns behind them."""
    tokens: list[str] = []
    limits: dict[str, ReadLimit] = {}
    for line in private_lines(key, path):
        token, *patterns = line.split()
        _check(f"{key} {path}", hide(token))
        if token in tokens:
            raise SettingsError(f"{key} {path}: a token is in it twice")
        tokens.append(token)
        if patterns and all(text.startswith("!") for text in patterns):
            raise SettingsError(
                f"{key} {path}: {patterns[0]!r} leaves out of what no pattern takes in: write * "
                "before it"
            )
        if patterns:
            limits[token] = ReadLimit(patterns)
    if not tokens:
        raise SettingsError(f"{key} {path}: there is no token in it; {_RULE}")
    return tokens, limits


def _file_tokens(key: str, path: Path) -> list[str]:
    """Return the tokens of a file, at least one."""
    found = private_lines(key, path)
    if not found:
        raise SettingsError(f"{key} {path}: there is no token in it; {_RULE}")
    for token in found:
        _check(f"{key} {path}", hide(token))
    return found


def private_lines(key: str, path: Path) -> list[str]:
    """Return the lines of a file that others may not read, without comments and empty lines.

    What is after a `#` is a comment: it is for values that have none, as tokens. Raises
    SettingsError, which names the setting `key`.
    """
    lines = _private_text(key, path).splitlines()
    return [text for line in lines if (text := line.partition("#")[0].strip())]


def private_line(key: str, path: Path) -> str:
    """Return the first line, as it is, of a file that others may not read: a password, or a key.

    Raises SettingsError, which names the setting `key`, also for an empty line.
    """
    lines = _private_text(key, path).splitlines()
    if not lines or not lines[0].strip():
        raise SettingsError(f"{key} {path}: its first line is empty")
    return lines[0]


def _private_text(key: str, path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "is not UTF-8"
        raise SettingsError(f"{key} {path}: {problem}") from None
    # The group's bits may be set: they show an ACL, which systemd's credentials have.
    if mode & stat.S_IRWXO:
        raise SettingsError(f"{key} {path}: others may read it: chmod 600 {path}")
    return text


def _env_token(key: str, variable: str, environ: Mapping[str, str]) -> str:
    token = environ.get(variable, "").strip()
    if not token:
        raise SettingsError(f"{key}: the environment variable {variable} is not set")
    _check(f"{key} {variable}", hide(token))
    return token


def _check(place: str, token: str) -> None:
    if len(token) < MIN_TOKEN_CHARS or not _TOKEN.fullmatch(token):
        raise SettingsError(f"{place}: {_RULE}")
