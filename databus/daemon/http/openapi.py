"""A daemon's JSON API: one table of endpoints is served, documented and tested.

An `Endpoint` has a path, its parameters and the model of its answer. Tornado's routes
(`api_routes`) and the OpenAPI document (`openapi`) are made from the same table, so they cannot
differ.

SCNs are strings of digits here, because they may exceed 2**53, the limit of exact integers in
JavaScript.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    ValidationError,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import models_json_schema

from databus import __version__
from databus.conf.settings import HttpSettings
from databus.daemon.access import ReadLimit, Role
from databus.daemon.http.handlers import ApiHandler
from databus.daemon.http.requests import decode_parameters
from databus.schemas.errors import InvalidParameterError

_IN_PATH = re.compile(r"\{([A-Za-z]+)\}")
MAX_SCN_DIGITS = 19
DOCUMENT_PATH = "/api/v1/openapi.json"
_REFUSALS = {
    400: "A parameter is not as it should be",
    401: "No token that is known",
    403: "Not for the role that the token gives",
}


def _scn(value: Any) -> Any:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        if len(value) <= MAX_SCN_DIGITS:
            return int(value)
        raise ValueError("an SCN has at most 63 bits")
    return value


Scn = Annotated[
    int,
    Field(ge=0, le=(1 << 63) - 1),
    BeforeValidator(_scn),
    PlainSerializer(str, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]{1,19}$", "examples": ["4294967301"]}),
]


class ApiModel(BaseModel):
    """The base of requests and answers: names in camelCase, and unknown names are an error."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,  # JSON has no such numbers
    )


class ErrorAnswer(ApiModel):
    """What every refusal looks like."""

    error: str
    message: str
    cause: str | None = None


class NoParameters(ApiModel):
    """An endpoint that takes none."""


class Document(RootModel[dict[str, Any]]):
    """An OpenAPI document."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The sender of a request: role, address, `User-Agent`, and the `Host` that it named.

    `limit` are the sources that its token may read, None if that is everything.
    """

    role: Role = Role.NOBODY
    address: str = ""
    agent: str = ""
    host: str = ""
    limit: ReadLimit | None = None

    def may_read(self, source: str) -> bool:
        """Return whether it may read a source."""
        return self.limit is None or self.limit.may_read(source)

    def check_read(self, *sources: str) -> None:
        """Raise ForbiddenError unless it may read all of some sources."""
        if self.limit is not None:
            self.limit.check(sources)


@dataclass(frozen=True, slots=True)
class Call:
    """One valid request; `query` and `body` are instances of the endpoint's models."""

    path: Mapping[str, str]
    query: Any
    body: Any
    peer: Peer = Peer()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path and method. `answer` is the model of the body, `errors` the statuses it may have.

    With `is_by_source` its answer is about the sources that the peer may read, and else it is
    refused to one that may not read all.
    """

    method: Literal["GET", "POST"]
    path: str
    summary: str
    answer: type[BaseModel]
    do: Callable[[Call], Awaitable[BaseModel]]
    role: Role = Role.READER
    query: type[ApiModel] = NoParameters
    body: type[ApiModel] | None = None
    errors: Mapping[int, str] = field(default_factory=dict)
    is_by_source: bool = False


class EndpointHandler(ApiHandler):
    """Answers one path of the API, each method by its endpoint."""

    endpoints: Mapping[str, Endpoint]

    def initialize(self, limits: HttpSettings, endpoints: Mapping[str, Endpoint]) -> None:  # type: ignore[override]
        """Set the endpoints of the path, by method."""
        super().initialize(limits)
        self.endpoints = endpoints

    def allowed_methods(self) -> tuple[str, ...]:
        """Return the methods of the path's endpoints."""
        return tuple(self.endpoints)

    def role_needed(self) -> Role:
        """Return the role of the endpoint of the method."""
        return self.endpoints[self.request.method or ""].role

    @property
    def is_by_source(self) -> bool:  # type: ignore[override]
        """Whether the endpoint of the method is."""
        return self.endpoints[self.request.method or ""].is_by_source

    async def get(self, **path: str) -> None:
        """Answer GET."""
        await self._answer(path)

    async def post(self, **path: str) -> None:
        """Answer POST."""
        await self._answer(path)

    async def _answer(self, path: Mapping[str, str]) -> None:
        endpoint = self.endpoints[self.request.method or ""]
        call = Call(path, self._query(endpoint), self._body(endpoint), self._peer())
        answer = await self.in_time(endpoint.do(call))
        text = answer.model_dump_json(by_alias=True) + "\n"
        await self.send(text.encode(), "application/json; charset=UTF-8")

    def _peer(self) -> Peer:
        request = self.request
        agent = request.headers.get("User-Agent", "")
        address = request.remote_ip or ""
        return Peer(self.role(), address, agent, request.host, self.read_limit())

    def _query(self, endpoint: Endpoint) -> ApiModel:
        given: dict[str, Any] = {**decode_parameters(self.request.query_arguments)}
        return _read(given, endpoint.query)

    def _body(self, endpoint: Endpoint) -> ApiModel | None:
        if endpoint.body is None:
            return None
        try:
            given = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError) as error:
            raise InvalidParameterError("(body)", "…", f"must be JSON: {error}") from error
        if not isinstance(given, dict):
            raise InvalidParameterError("(body)", type(given).__name__, "is a JSON object")
        return _read(given, endpoint.body)


def _read(given: dict[str, Any], model: type[ApiModel]) -> ApiModel:
    """Return checked parameters; raises InvalidParameterError."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"])) or "(request)"
        raise InvalidParameterError(name, str(problem["input"]), problem["msg"]) from error


def api_routes(
    endpoints: Iterable[Endpoint], limits: HttpSettings
) -> list[tuple[str, type[ApiHandler], dict[str, Any]]]:
    """Return tornado's routes of the endpoints."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in endpoints:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    return [
        (_IN_PATH.sub(r"(?P<\1>[^/]+)", path), EndpointHandler, {"limits": limits, "endpoints": of})
        for path, of in by_path.items()
    ]


def with_document(
    endpoints: Sequence[Endpoint], title: str, description: str, path: str = DOCUMENT_PATH
) -> list[Endpoint]:
    """Return the endpoints and one more, which answers with the document of all of them.

    The document is made when it is first asked for: to make it takes as long as a tenth of a start.
    """

    @cache
    def document() -> Document:
        return Document(openapi(found, title, description))

    async def show(_call: Call) -> Document:
        return document()

    summary = "This document"
    found = [*endpoints, Endpoint("GET", path, summary, Document, show, role=Role.NOBODY)]
    return found


def openapi(endpoints: Sequence[Endpoint], title: str, description: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the endpoints."""
    models: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = [
        (ErrorAnswer, "serialization")
    ]
    for endpoint in endpoints:
        models.append((endpoint.answer, "serialization"))
        if endpoint.body is not None:
            models.append((endpoint.body, "validation"))
    refs, components = models_json_schema(models, ref_template="#/components/schemas/{model}")
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "description": description},
        "paths": paths,
        "components": {
            "schemas": components["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint, refs: Mapping[Any, Any]) -> dict[str, Any]:
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _IN_PATH.findall(endpoint.path)
    ]
    schema = endpoint.query.model_json_schema(mode="validation")
    required = schema.get("required", ())
    in_query = [
        {"name": name, "in": "query", "required": name in required, "schema": of}
        for name, of in schema.get("properties", {}).items()
    ]

    def content(model: type[BaseModel], mode: str) -> dict[str, Any]:
        return {"application/json": {"schema": refs[model, mode]}}

    answers: dict[str, Any] = {
        "200": {"description": "The answer", "content": content(endpoint.answer, "serialization")}
    }
    for status, text in {**_REFUSALS, **endpoint.errors}.items():
        answers[str(status)] = {
            "description": text,
            "content": content(ErrorAnswer, "serialization"),
        }
    found: dict[str, Any] = {
        "summary": endpoint.summary,
        "x-databus-role": endpoint.role.name.lower(),
        "parameters": [*in_path, *in_query],
        "responses": answers,
    }
    if endpoint.body is not None:
        found["requestBody"] = {"required": True, "content": content(endpoint.body, "validation")}
    return found
