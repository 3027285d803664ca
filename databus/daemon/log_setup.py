"""Logs of the daemons: a line of text or of JSON for each record, with its context.

    log.error("capture of %s stopped: %s", name, error, extra=about(physical_source=name, scn=scn))

As JSON, a record has `time` (UTC, ISO 8601), `level`, `logger`, `message`, the known context
(`physical_source`, `source`, `scn`, `client`), and `exception` with the traceback. SCNs are
strings, as in the API.

Secrets are replaced: those given to `hide`, and texts that look like one.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]

ABOUT = ("physical_source", "source", "scn", "client")
HIDDEN = "***"
_MIN_SECRET_CHARS = 6  # shorter ones are part of ordinary words
_LOOKS_SECRET = re.compile(
    r"(?i)(?P<before>\b(?:bearer|basic) +)[a-z0-9._~+/=-]{8,}"
    r"|(?P<url>//[^\s/:@]+:)[^\s/@]+(?=@)"
    r"|(?P<key>\b\w*(?:password|passwd|secret|token)['\"]?(?:=|: *(?=['\"]))['\"]?)[^\s'\",;)&]+"
)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
_hidden: set[str] = set()


def about(
    *,
    physical_source: str | None = None,
    source: str | None = None,
    scn: int | None = None,
    client: str | None = None,
    error: BaseException | None = None,
) -> dict[str, Any]:
    """Return the known context of a record, for `extra=`.

    The SCN of `error` takes precedence over `scn`.
    """
    known = {"physical_source": physical_source, "source": source, "client": client}
    named = getattr(error, "scn", None)
    if isinstance(named, int) and named >= 0:
        scn = named
    # A negative SCN means that there is none.
    known["scn"] = str(scn) if scn is not None and scn >= 0 else None
    return {key: value for key, value in known.items() if value is not None}


def hide(secret: str) -> str:
    """Remove a secret from all later logs of this process; returns the secret."""
    if len(secret) >= _MIN_SECRET_CHARS:
        _hidden.add(secret)
    return secret


def redact(text: str) -> str:
    """Return a text without known secrets and without texts that look like one."""
    for secret in _hidden:
        text = text.replace(secret, HIDDEN)
    return _LOOKS_SECRET.sub(_keep_what_is_before, text)


def _keep_what_is_before(match: re.Match[str]) -> str:
    kept = match["before"] or match["url"] or match["key"]
    return f"{kept}{HIDDEN}"


class TextFormatter(logging.Formatter):
    """Formats a line for people, with the traceback below; a message cannot forge another line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        message = record.getMessage()
        more = [f"{k}={v}" for k, v in _about(record).items() if str(v) not in message]
        line = f"{self.formatTime(record)} {record.levelname} {record.name}: {message}"
        if more:
            line += f" ({' '.join(more)})"
        line = _CONTROL.sub(lambda match: repr(match[0])[1:-1], line)
        trace = _traceback(self, record)
        return redact(f"{line}\n{trace}" if trace else line)


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line, for programs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **{key: redact(str(value)) for key, value in _about(record).items()},
        }
        if trace := _traceback(self, record):
            fields["exception"] = redact(trace)
        return json.dumps(fields, ensure_ascii=False)


def _about(record: logging.LogRecord) -> dict[str, Any]:
    return {key: vars(record)[key] for key in ABOUT if key in vars(record)}


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    # Not stored in the record, as logging does: other handlers would print it unredacted.
    if record.exc_info and record.exc_info[0]:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


def set_up_logs(log_format: LogFormat, *, is_verbose: bool = False) -> None:
    """Log warnings and errors of this process to stderr; verbose adds refused requests."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO if is_verbose else logging.WARNING, handlers=[handler])
    if not is_verbose:
        # Failed TLS handshakes: any stranger could fill the log with them.
        logging.getLogger("tornado.general").setLevel(logging.ERROR)
