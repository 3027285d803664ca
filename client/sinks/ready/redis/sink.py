"""The sink `redis`: rows as strings or hashes, or changes in streams, lists and channels.

A flush is one script, which Redis runs as a whole, with the position in it: exactly once. A second
process that opens the sink makes the first one stop.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from pydantic import Field, ValidationInfo, field_validator

from databus.client.sinks.contract import Change, ChangeOp, Opening, Position
from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.client.sinks.formats.choosing import (
    DebeziumSettings,
    TextFormatName,
    chosen_format,
    needs_registry,
)
from databus.client.sinks.ready.templates import Template
from databus.conf.addresses import has_password
from databus.conf.extras import how_to_install
from databus.conf.model import Settings
from databus.daemon.tls import client_context
from databus.daemon.tokens import private_line
from databus.schemas.errors import SettingsError

try:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise ImportError(f"{error}: {how_to_install('redis')}") from error

from databus.client.sinks.ready.redis.commands import (
    Commands,
    Messages,
    Rows,
    Value,
    format_value,
    row_value,
    template_value,
)
from databus.client.sinks.ready.redis.errors import sink_errors
from databus.client.sinks.ready.redis.scripts import REMOVE, TAKE_OVER, WRITE, packed, shown

# As it is shown to whoever is replaced by it.
_PROCESS = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex}"
_SCHEMES = ("redis://", "rediss://", "unix://")
_FLUSH_BYTES = 16 << 20  # written earlier, if a transaction ends there
_MOST_BYTES = 512 << 20  # Redis takes no longer argument (its proto-max-bulk-len)
_AT_ONCE = 1000  # keys of a table that a TRUNCATE removes without a pause


class RedisSink:
    """Writes each flush with its position; exactly once."""

    keeps_position = True
    has_position_per_source = True

    class Options(Settings):
        """Options of `redis`."""

        url: str = Field(
            default="redis://127.0.0.1:6379/0",
            description="redis://, rediss:// (TLS) or unix://, with a user and a database",
        )
        write: Literal["string", "hash", "stream", "list", "pubsub"] = Field(
            default="string", description="What a row, or a change, is in Redis"
        )
        key: str = Field(
            default="",
            description="Template of the key or channel; none = source and primary key, and the "
            "source of streams, lists and channels",
        )
        value: str = Field(default="", description="Template of the value; none = `format`")
        format: Literal[TextFormatName, "row", ""] = Field(
            default="", description="Format of values; none = `row` of strings, else `plain`"
        )
        debezium: DebeziumSettings = Field(
            default_factory=DebeziumSettings, description="Settings of the format `debezium`"
        )
        ttl_s: int = Field(default=0, ge=0, description="Keys expire after so long; 0 = never")
        max_length: int = Field(
            default=0, ge=0, description="Of a stream (about) and a list: the newest; 0 = all"
        )
        truncate: Literal["remove", "refuse"] = Field(
            default="remove",
            description="A TRUNCATE removes the keys of the table, whose names are kept for it",
        )
        prefix: str = Field(default="databus", description="Of the sink's own keys")
        password_file: Path | None = Field(
            default=None, description="File with the password; only its user may read it"
        )
        ca_file: Path | None = Field(
            default=None, description="PEM file of the CA that the server's certificate is from"
        )
        timeout_s: float = Field(default=30.0, gt=0, description="Time for an answer")

        @field_validator("url")
        @classmethod
        def _is_a_url(cls, url: str) -> str:
            if not url.startswith(_SCHEMES):
                raise ValueError(f"it begins with one of {', '.join(_SCHEMES)}")
            if has_password(url):
                raise ValueError("the password is in it: write it to password_file")
            if "?" in url:
                raise ValueError("it has a query: settings of the connection are options")
            return url

        @field_validator("key", "value")
        @classmethod
        def _is_a_template(cls, text: str) -> str:
            Template(text)
            return text

        @field_validator("ca_file")
        @classmethod
        def _is_for_tls(cls, file: Path | None, info: ValidationInfo) -> Path | None:
            if file is not None and not info.data.get("url", "").startswith("rediss://"):
                raise ValueError("it is for a url that begins with rediss://")
            return file

        @field_validator("format")
        @classmethod
        def _is_for_it(cls, name: str, info: ValidationInfo) -> str:
            if name == "row" and info.data.get("write") != "string":
                raise ValueError("row is the format of write = 'string'")
            return name

    def __init__(self, options: Options) -> None:
        """Raises SettingsError for the password file."""
        self._options = options
        self._client = _client(options)
        self._take_over = self._client.register_script(TAKE_OVER)
        self._write = self._client.register_script(WRITE)
        self._remove = self._client.register_script(REMOVE)
        self._state = self._sink = ""
        self._commands = _commands(options, self._index_of)
        self._packed: list[bytes] = []
        self._changes: list[Change] = []  # of each command
        self._bytes = 0
        self._durable: Position | None = None
        self._position: Position | None = None  # behind what was written

    def open(self, opening: Opening) -> Position | None:
        """Take over from an earlier process, and return the position that Redis has."""
        self._sink = opening.sink
        self._state = f"{self._options.prefix}:{opening.sink}:{opening.physical_source}"
        has_position = "" if opening.is_first else "known"
        takes_over = "again" if opening.takes_over else ""
        with sink_errors(self._options.url):
            if self._client.info("server").get("redis_mode") == "cluster":
                raise SinkError(
                    f"{self._options.url} is a Redis Cluster, which has no flush of all"
                )
            arguments = [_PROCESS, has_position, takes_over]
            answer = self._take_over(keys=[self._state], args=arguments)
        self._check(answer)
        text = shown(answer, 1)
        self._position = self._durable = Position.from_json(text) if text else None
        return self._durable

    def write(self, changes: Sequence[Change]) -> None:
        """Collect commands; raise SinkRefusedError for a row of which there are none."""
        for change in changes:
            if change.op is ChangeOp.TRUNCATE and self._commands.has_rows:
                self._empty(change)
            for command in self._commands.of(change):
                self._packed.append(packed(command))
                self._changes.append(change)
                self._bytes += len(self._packed[-1])
            self._position = change.position or self._position
            if change.position is not None and self._bytes > _FLUSH_BYTES:
                self._run()

    def flush(self) -> Position | None:
        """Run the commands, and store the position with them."""
        self._run()
        return self._durable

    def close(self) -> None:
        """Disconnect; what was not flushed is dropped."""
        self._client.close()

    def _run(self) -> None:
        if not self._packed and self._position == self._durable:
            return
        if self._bytes > _MOST_BYTES:
            raise SinkRefusedError(f"{self._bytes} bytes at once are more than Redis takes")
        arguments: list[str | bytes] = [*self._guard, _text(self._position), b"".join(self._packed)]
        with sink_errors(self._options.url):
            answer = self._write(keys=[self._state], args=arguments)
        self._check(answer)
        self._durable = self._position
        self._packed, self._changes, self._bytes = [], [], 0

    def _empty(self, change: Change) -> None:
        """Remove the keys of a table, a thousand at once: Redis serves others in between.

        A crash on the way leaves the position before it, and all of it is done again.
        """
        if self._options.truncate == "refuse":
            raise SinkRefusedError(f"TRUNCATE of {change.source}: truncate = 'refuse'", change)
        self._run()
        found = _AT_ONCE
        while found == _AT_ONCE:
            with sink_errors(self._options.url):
                keys = [self._state, self._index_of(change.source)]
                answer = self._remove(keys=keys, args=[*self._guard, _AT_ONCE])
            self._check(answer)
            found = int(answer[1])

    def _check(self, answer: Sequence[object]) -> None:
        """Raise SinkError for what a script did not do."""
        said, where = shown(answer, 0), f"{self._options.url}: {self._state}"
        if said == "type":
            change = self._changes[int(shown(answer, 1)) - 1]
            raise SinkRefusedError(
                f"{self._options.url}: the key of a row of {change.source} is a "
                f"{shown(answer, 2)}, and write = {self._options.write!r}",
                change,
            )
        if said == "replaced":
            raise SinkError(
                f"{where}: another process writes it: {shown(answer, 1)}: stop one of them, or "
                "give one another name; `databus sink retry` has this one go on, and the other one "
                "stops"
            )
        if said == "behind":
            raise SinkUnavailableError(f"{where}: Redis has gone back to an earlier position")
        if said == "lost":
            raise SinkError(
                f"{where} is not there any more: Redis has lost its position, and rows with it. "
                "Under another name the sink begins anew"
            )

    @property
    def _guard(self) -> list[str]:
        return [_PROCESS, _text(self._durable)]

    def _index_of(self, source: str) -> str:
        return f"{self._options.prefix}:{self._sink}:keys:{source}"


def _text(position: Position | None) -> str:
    return "" if position is None else position.to_json()


def _client(options: RedisSink.Options) -> Redis:
    """Return a client, which has not connected. It repeats nothing: the sink is opened again."""
    password = None
    if options.password_file is not None:
        password = private_line("password_file", options.password_file)
    return Redis.from_url(
        options.url,
        password=password,
        protocol=2,  # what servers before 6 speak, too
        retry=Retry(NoBackoff(), 0),
        socket_timeout=options.timeout_s,
        socket_connect_timeout=options.timeout_s,
        **_tls(options),
    )


def _tls(options: RedisSink.Options) -> dict[str, Any]:
    if not options.url.startswith("rediss://"):
        return {}
    # Older libraries do not look at the server's name by themselves.
    found: dict[str, Any] = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    if options.ca_file is None:
        return found
    client_context(
        options.ca_file, "ca_file"
    )  # the library would take a file that is not there for a server
    return {**found, "ssl_ca_certs": str(options.ca_file)}


def _commands(options: RedisSink.Options, index_of: Callable[[str], str]) -> Commands:
    template = Template(options.key) if options.key else None
    value = None if options.write == "hash" else _value(options)
    if options.write in ("string", "hash"):
        keeps_names = options.truncate == "remove"
        return Rows(template, value, options.ttl_s, index_of if keeps_names else None)
    assert value is not None
    name = template or Template("{source}")
    return Messages(options.write, name, value, options.max_length, options.ttl_s)


def _value(options: RedisSink.Options) -> Value:
    if options.value:
        return template_value(Template(options.value))
    name = options.format or ("row" if options.write == "string" else "plain")
    if name != "row" and needs_registry(name, options.debezium):
        raise SettingsError("redis keeps no messages in Avro: set another debezium.converter")
    return row_value if name == "row" else format_value(chosen_format(name, options.debezium))
