"""Schemas of messages in a registry with Confluent's API, and the framing that names them.

A message in Avro is a zero byte, the id of its schema in the registry as 4 bytes, big-endian, and
the data. Subjects are `TOPIC-key` and `TOPIC-value`, as Kafka's own serializers name them.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from databus.client.sinks.contract import Change
from databus.client.sinks.errors import SinkError, SinkRefusedError, SinkUnavailableError
from databus.client.sinks.formats.message import AvroPart
from databus.conf.model import Settings
from databus.daemon.tokens import private_line
from databus.schemas.errors import SettingsError

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import SchemaRegistryClient

_MAGIC = b"\0"
_UNAUTHORIZED = (401, 403)
_BUSY = (408, 429)
_OURS = 400
_THEIRS = 500


class RegistrySettings(Settings):
    """Where the schemas of messages in Avro are kept."""

    url: str = Field(description="URL of a registry with Confluent's API")
    user: str = Field(default="", description="User of HTTP Basic")
    password_file: Path | None = Field(
        default=None, description="File with its password; only its user may read it"
    )
    ca_file: Path | None = Field(default=None, description="Certificates that it is checked by")

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("write http://HOST:PORT or https://…, with the path of the API")
        if "@" in parts.netloc:
            raise ValueError("it is shown in errors: give user and password_file instead")
        return url


class SchemaRegistry:
    """Registers schemas, each once, and frames what is written with them."""

    def __init__(self, settings: RegistrySettings, timeout_s: float) -> None:
        """Raises SettingsError for the password file, and without the library."""
        self._settings, self._timeout_s = settings, timeout_s
        self._ids: dict[tuple[str, str], bytes] = {}
        self._user_info = _user_info(settings)

    def frame(self, subject: str, part: AvroPart, change: Change) -> bytes:
        """Return a part of a message with the id of its schema.

        Raises SinkRefusedError if the registry refuses the schema, SinkUnavailableError.
        """
        place = (subject, part.schema)
        if place not in self._ids:
            self._ids[place] = self._register(subject, part.schema, change).to_bytes(4, "big")
        return _MAGIC + self._ids[place] + part.data

    def close(self) -> None:
        """Close the connections."""
        client = self.__dict__.pop("_client", None)
        if client is not None:
            client.__exit__(None, None, None)

    def _register(self, subject: str, text: str, change: Change) -> int:
        # Only who writes Avro has to load the library's client.
        from confluent_kafka.schema_registry import Schema
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return int(self._client.register_schema(subject, Schema(text, "AVRO")))
        except SchemaRegistryError as error:
            raise self._error(subject, error.http_status_code, str(error), change) from error
        except Exception as error:
            if not isinstance(error, OSError) and not _is_transport(error):
                raise
            raise SinkUnavailableError(f"{self._settings.url}: {error}") from error

    def _error(self, subject: str, status: int, problem: str, change: Change) -> SinkError:
        text = f"{self._settings.url} refuses the schema of subject {subject}: {problem}"
        if status in (*_UNAUTHORIZED, *_BUSY) or not _OURS <= status < _THEIRS:
            return SinkUnavailableError(text)
        return SinkRefusedError(text, change)

    @cached_property
    def _client(self) -> SchemaRegistryClient:
        from confluent_kafka.schema_registry import SchemaRegistryClient

        settings: dict[str, Any] = {"url": self._settings.url, "timeout": self._timeout_s}
        if self._user_info:
            settings["basic.auth.user.info"] = self._user_info
        if self._settings.ca_file is not None:
            settings["ssl.ca.location"] = str(self._settings.ca_file)
        # The lane repeats what fails, and shows it.
        return SchemaRegistryClient({**settings, "max.retries": 0})


def _user_info(settings: RegistrySettings) -> str:
    if not settings.user:
        return ""
    if settings.password_file is None:
        raise SettingsError("registry.user has no password: name a file with password_file")
    return f"{settings.user}:{private_line('password_file', settings.password_file)}"


def _is_transport(error: Exception) -> bool:
    """Whether an error of the library's HTTP client says that no answer came."""
    return any(kind.__name__ == "TransportError" for kind in type(error).__mro__)
