"""The options of the sink, and the client that they amount to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, field_validator
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from databus.client.sinks.ready.mongodb.positions import Document
from databus.client.sinks.ready.mongodb.values import Dates, Decimals, JsonColumns
from databus.client.sinks.ready.templates import Template
from databus.conf.addresses import has_password
from databus.conf.model import Settings
from databus.daemon.tokens import private_line
from databus.schemas.errors import SettingsError

_SCHEMES = ("mongodb://", "mongodb+srv://")
_FIELD = re.compile(r"[^$.\0][^.\0]*")


class MongoOptions(Settings):
    """Options of `mongodb`."""

    url: str = Field(
        default="mongodb://127.0.0.1:27017",
        description="mongodb:// or mongodb+srv://, with the user, the replica set, and TLS",
    )
    database: str = Field(default="{schema}", description="Template of the database")
    collection: str = Field(default="{table}", description="Template of the collection")
    id: str = Field(default="", description="Template of `_id`; none = the primary key")
    scn_field: str = Field(
        default="databus_scn", description="Field of each document with the SCN of its change"
    )
    dates: Dates = Field(
        default="exact",
        description="`exact`: DATETIME and TIMESTAMP with more than three digits of a second are "
        "texts, and others dates; or `milliseconds`, where all are dates and lose digits, `text`",
    )
    decimals: Decimals = Field(
        default="decimal128", description="or `text`, for more than 34 digits"
    )
    json_columns: JsonColumns = Field(
        default="document", description="What a column of JSON is; or `text`, as it was written"
    )
    exactly_once: bool = Field(
        default=False,
        description="A flush is one transaction of MongoDB with the position: for replica sets",
    )
    positions: str = Field(
        default="databus.positions",
        description="DATABASE.COLLECTION of what the sink keeps for itself",
    )
    password_file: Path | None = Field(
        default=None, description="File with the password; only its user may read it"
    )
    timeout_s: float = Field(default=30.0, gt=0, description="Time for a server, and for an answer")

    @property
    def keeps_position(self) -> bool:
        """Whether the target keeps the position; then there is one lane."""
        return self.exactly_once

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        if not url.startswith(_SCHEMES):
            raise ValueError(f"it begins with one of {', '.join(_SCHEMES)}")
        if has_password(url):
            raise ValueError("the password is in it: write it to password_file")
        query = _query(url)
        if any("password" in name for name in query):
            raise ValueError("its query has a password: use a key that has none, in a private file")
        if query.get("w") == "0":
            raise ValueError("w=0: nobody would know whether MongoDB has the rows")
        if url.startswith(_SCHEMES[0]):  # the other one asks a name server
            try:
                parse_uri(url)
            except (PyMongoError, ValueError, OSError) as error:
                raise ValueError(str(error)) from error
        return url

    @field_validator("database", "collection", "id")
    @classmethod
    def _is_a_template(cls, text: str) -> str:
        Template(text)
        return text

    @field_validator("scn_field")
    @classmethod
    def _is_a_field(cls, name: str) -> str:
        if not _FIELD.fullmatch(name) or name == "_id":
            raise ValueError("it is a name without dots, not _id, and begins with no $")
        return name

    @field_validator("positions")
    @classmethod
    def _is_a_collection(cls, name: str) -> str:
        database, _, collection = name.partition(".")
        if not database or not collection:
            raise ValueError("write DATABASE.COLLECTION")
        return name


def client_of(options: MongoOptions) -> MongoClient[Document]:
    """Return a client, which has not connected; raises SettingsError."""
    milliseconds = int(options.timeout_s * 1000)
    given: dict[str, Any] = {
        "w": "majority",
        "journal": True,
        "retryWrites": True,
        "appName": "databus",
        "serverSelectionTimeoutMS": milliseconds,
        "connectTimeoutMS": milliseconds,
        "socketTimeoutMS": milliseconds,
        "wTimeoutMS": milliseconds,
    }
    said = _query(options.url)
    given = {name: value for name, value in given.items() if name.lower() not in said}
    if options.password_file is not None:
        given["password"] = private_line("password_file", options.password_file)
    try:
        return MongoClient(options.url, connect=False, **given)
    except (PyMongoError, ValueError, OSError) as error:
        raise SettingsError(f"url {options.url}: {error}") from error


def _query(url: str) -> dict[str, str]:
    pairs = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    return {name.lower(): value for name, value in pairs}
