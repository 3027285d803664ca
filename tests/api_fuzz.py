"""An API against its own OpenAPI document: by hand-made requests, and by thousands of random ones.

    check_answer(document, "GET", "/api/v1/relay", answer)    # is the answer as documented?
    fuzz(url, document)                                       # is every answer?

Random requests come from schemathesis: such as the document allows, and such
as it does not. Whatever is sent, no answer is a 500, each has a status that
the document names, and a body of the model that it names.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import jsonschema_rs
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from databus.conf.settings import HttpSettings

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 30
_LARGEST_BYTES = HttpSettings().max_request_bytes // 2  # of a body, with room for the headers
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


def fuzz(
    url: str,
    document: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    leave_out: Collection[str] = (),
    examples: int = EXAMPLES,
) -> int:
    """Send random requests to every operation; returns how many were sent.

    Fails with the request that got an answer that is not as documented.
    `leave_out` are paths that are not asked for.
    """
    schema = schemathesis.openapi.from_dict(dict(document))
    sent = 0
    with requests.Session() as session:
        session.headers.update(headers or {})
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]
            if operation.path not in leave_out:
                for mode in MODES:
                    sent += _fuzz_operation(session, url, operation, mode, examples)
                sent += _fuzz_path(session, url + operation.path, examples)
    return sent


def _fuzz_operation(
    session: requests.Session, url: str, operation: Any, mode: GenerationMode, examples: int
) -> int:
    sent = 0

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        nonlocal sent
        sent += 1
        if len(json.dumps(case.body, default=repr)) > _LARGEST_BYTES:
            return  # the connection is closed before the API is asked
        response = case.call(base_url=url, session=session)
        case.validate_response(response, checks=CHECKS)

    # What takes no parameters cannot be asked with wrong ones.
    with suppress(Unsatisfiable):
        send()
    return sent


def _fuzz_path(session: requests.Session, url: str, examples: int) -> int:
    """Send what no document speaks of: other methods, unknown parameters, bodies of any bytes."""
    sent = 0

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(
        method=st.sampled_from(("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS")),
        query=st.dictionaries(st.text(max_size=10), st.text(max_size=30), max_size=3),
        body=st.binary(max_size=200) | st.just(b"[" * 20_000),
    )
    def send(method: str, query: dict[str, str], body: bytes) -> None:
        nonlocal sent
        sent += 1
        answer = session.request(method, url, params=query, data=body)
        assert answer.status_code < 500, answer.text

    send()
    return sent


def check_answer(
    document: Mapping[str, Any], method: str, path: str, status: int, body: bytes
) -> Any:
    """Check one answer against the document, return its JSON. `path` is one of the document's."""
    answers = document["paths"][path][method.lower()]["responses"]
    assert str(status) in answers, f"{method} {path}: {status} is not in the document: {body!r}"
    value = json.loads(body)
    schema = answers[str(status)]["content"]["application/json"]["schema"]
    whole = {**schema, "components": document["components"]}
    jsonschema_rs.validate(whole, value)
    return value


def operations_of(document: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return every (method, path) of a document."""
    return {(method.upper(), path) for path, of in document["paths"].items() for method in of}
