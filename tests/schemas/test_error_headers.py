"""Errors as headers: what servers send, and what clients raise of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from databus.schemas import errors
from databus.schemas.error_headers import REFUSALS, error_headers, read_error
from databus.schemas.errors import (
    BootstrapError,
    BootstrapTooOldError,
    BootstrapTooYoungError,
    DamagedWindowsError,
    DatabusError,
    InvalidParameterError,
    OtherLogError,
    ProtocolError,
    RequestError,
    RowsUnknownError,
    SchemaNotFoundError,
    ScnNotFoundError,
    ServerError,
    TableStoppedError,
    TooSlowError,
    UnauthorizedError,
    UnknownCommandError,
    UnknownSourceError,
)

SERVER = "http://a:1"


def raised(error: DatabusError) -> DatabusError:
    """Return what a client raises of an error that a server answered."""
    headers = {name.lower(): value for name, value in error_headers(error).items()}
    found = read_error(SERVER, 5, error.status, headers)
    assert found is not None
    return found


def derived(kind: type[DatabusError]) -> Iterator[type[DatabusError]]:
    for one in kind.__subclasses__():
        yield one
        yield from derived(one)


@pytest.mark.parametrize(
    "error",
    [
        InvalidParameterError("size", "x", "a whole number"),
        UnknownCommandError("/strem"),
        UnknownSourceError("shop.x", ["shop.orders"]),
        UnauthorizedError("no token"),
        TooSlowError(5),
        BootstrapTooOldError("shop.orders is being seeded"),
        BootstrapTooYoungError("deleted rows are known from 9 on"),
        OtherLogError.of("shop", (5, 1), None),
    ],
)
def test_a_refusal_is_raised_as_its_own_class_with_the_servers_name_and_text(
    error: DatabusError,
) -> None:
    found = raised(error)
    assert type(found) is type(error)
    assert str(found) == f"{SERVER}: {error}"
    assert found.server == SERVER


@pytest.mark.parametrize("name", ["shop.café", "магазин.日本", "shop.50%25 é", "shop.a\nb"])
def test_a_name_of_any_characters_comes_back_as_it_was(name: str) -> None:
    for error in (
        UnknownSourceError(name, ["shop.é"]),
        InvalidParameterError("sources", name, "é"),
    ):
        assert str(raised(error)) == f"{SERVER}: {error}"
    stopped = TableStoppedError(f"{name} is stopped")
    stopped.source = name
    found = raised(stopped)
    assert isinstance(found, TableStoppedError)
    assert found.source == name
    for sent in error_headers(UnknownSourceError(name, ["shop.é"])).values():
        assert all(" " <= one <= "~" for one in sent), "a header has no other characters"


def test_a_text_that_a_header_can_have_is_sent_once() -> None:
    assert "x-databus-error-text" not in error_headers(UnknownSourceError("shop.x", ["shop.…"]))


def test_of_many_names_the_most_alike_are_shown_and_the_others_counted() -> None:
    known = [f"shop.table_{number}" for number in range(59)] + ["shop.orders"]
    text = str(UnknownSourceError("shop.ordesr", known))
    assert text.startswith("unknown source 'shop.ordesr'; known: shop.orders, shop.table_")
    assert text.endswith(" and 50 more")
    assert text.count("shop.") == 11
    assert "shop.table_9 and 50 more" in str(UnknownSourceError(7, known))
    assert len(str(UnknownSourceError("x", [f"s.{number}" for number in range(50_000)]))) < 200


def test_a_class_without_a_name_of_its_own_is_raised_as_its_parent() -> None:
    assert type(raised(RowsUnknownError("shop.orders", 5, "why"))) is BootstrapTooOldError


def test_a_refusal_has_the_facts_of_its_class_though_no_header_carries_them() -> None:
    found = raised(InvalidParameterError("size", "x", "a whole number"))
    assert isinstance(found, InvalidParameterError)
    assert (found.parameter, found.rule) == ("", "")


def test_every_refusal_with_a_name_of_its_own_is_in_the_table() -> None:
    own = {one for one in derived(RequestError) if "wire_name" in vars(one)}
    assert set(REFUSALS.values()) == own
    assert all(kind.wire_name == name for name, kind in REFUSALS.items())
    named = {getattr(errors, kind.__name__) for kind in own}
    assert named == own


def test_the_oldest_scn_and_the_advice_travel_in_headers_of_their_own() -> None:
    sent = error_headers(ScnNotFoundError(5, 7, "ask /relay/b"))
    assert sent == {
        "x-dbus-error": "com.linkedin.databus2.core.container.request.RequestProcessingException",
        "x-dbus-error-message": "scn 5 is gone; the oldest held is 7; ask /relay/b",
        "x-dbus-error-cause": "com.linkedin.databus.core.ScnNotFoundException",
        "x-dbus-error-cause-message": "scn 5 is gone; the oldest held is 7; ask /relay/b",
        "x-databus-oldest-scn": "7",
        "x-databus-advice": "ask /relay/b",
    }
    found = raised(ScnNotFoundError(5, 7, "ask /relay/b"))
    assert isinstance(found, ScnNotFoundError)
    assert (found.scn, found.oldest, found.advice) == (5, 7, "ask /relay/b")


def test_damage_is_told_as_a_point_that_is_gone_with_where_it_ends() -> None:
    damage = DamagedWindowsError("/data/ring", "shop", (3, 9), 4096)
    found = raised(damage)
    assert type(found) is ScnNotFoundError
    assert (found.oldest, found.advice) == (9, damage.advice)


def test_no_fact_is_cut_out_of_a_text() -> None:
    headers = {
        "x-dbus-error": "com.linkedin.databus2.core.container.request.RequestProcessingException",
        "x-dbus-error-cause": "com.linkedin.databus.core.ScnNotFoundException",
        "x-dbus-error-cause-message": "scn 5 is gone; the oldest held is 7; do this",
    }
    found = read_error(SERVER, 5, 500, headers)
    assert isinstance(found, ScnNotFoundError)
    assert (found.oldest, found.advice) == (-1, "")
    assert str(found) == "scn 5 is gone; the oldest held is unknown"


@pytest.mark.parametrize("text", ["x", "-3", "", "9" * 30, "\u0665"])
def test_an_oldest_scn_that_is_none_is_unknown(text: str) -> None:
    headers = {"x-dbus-error-cause": "ScnNotFoundException", "x-databus-oldest-scn": text}
    found = read_error(SERVER, 5, 404, headers)
    assert isinstance(found, ScnNotFoundError)
    assert found.oldest == -1


@pytest.mark.parametrize(
    ("error", "names"),
    [
        (
            BootstrapError("no room"),
            "RequestProcessingException caused by BootstrapProcessingException",
        ),
        (SchemaNotFoundError("none yet"), "DatabusSchemaException"),
        (DatabusError("internal"), "RequestProcessingException"),
    ],
)
def test_a_servers_own_trouble_is_a_server_error_with_its_text(
    error: DatabusError, names: str
) -> None:
    found = raised(error)
    assert type(found) is ServerError
    assert str(found) == f"{SERVER}: status {error.status} {names} {error}"


STOCK_REQUEST = "com.linkedin.databus2.core.container.request"
STOCK_NAMES = [
    (ScnNotFoundError(5, 7), "com.linkedin.databus.core.ScnNotFoundException"),
    (BootstrapTooOldError("x"), f"{STOCK_REQUEST}.BootstrapDatabaseTooOldException"),
    (BootstrapTooYoungError("x"), f"{STOCK_REQUEST}.BootstrapDatabaseTooYoungException"),
    (BootstrapError("x"), "com.linkedin.databus.bootstrap.api.BootstrapProcessingException"),
]


@pytest.mark.parametrize(("error", "name"), STOCK_NAMES)
def test_what_stock_clients_look_for_among_causes_is_one_by_its_full_name(
    error: DatabusError, name: str
) -> None:
    headers = error_headers(error)
    assert headers["x-dbus-error"] == f"{STOCK_REQUEST}.RequestProcessingException"
    assert headers["x-dbus-error-cause"] == name


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (UnknownCommandError("/x"), f"{STOCK_REQUEST}.UnknownCommandException"),
        (
            InvalidParameterError("a", "b", "c"),
            f"{STOCK_REQUEST}.InvalidRequestParamValueException",
        ),
        (ProtocolError("x"), "com.linkedin.databus.core.InvalidEventException"),
        (UnauthorizedError("x"), "UnauthorizedException"),
    ],
)
def test_other_errors_have_no_cause_and_the_full_name_if_java_has_it(
    error: DatabusError, name: str
) -> None:
    headers = error_headers(error)
    assert headers["x-dbus-error"] == name
    assert "x-dbus-error-cause" not in headers


@pytest.mark.parametrize("kind", sorted(REFUSALS.values(), key=str))
def test_a_bare_name_is_that_of_an_older_server(kind: type[RequestError]) -> None:
    for header in ("x-dbus-error", "x-dbus-error-cause"):
        assert type(read_error(SERVER, 5, kind.status, {header: kind.wire_name})) is kind


@pytest.mark.parametrize(
    ("status", "headers", "text"),
    [
        (500, {"x-dbus-error": "com.acme.OddException"}, "status 500 com.acme.OddException"),
        (
            200,
            {"x-dbus-error": "a.Odd", "x-dbus-error-cause": "b.Cause", "x-dbus-error-message": "m"},
            "status 200 a.Odd caused by b.Cause m",
        ),
        (502, {}, "status 502"),
        (
            503,
            {"x-dbus-error": "Odd", "x-dbus-error-message": "BootstrapDatabaseTooOldException"},
            "status 503 Odd BootstrapDatabaseTooOldException",
        ),
    ],
)
def test_an_unknown_name_is_a_server_error_whatever_its_text_says(
    status: int, headers: dict[str, str], text: str
) -> None:
    found = read_error(SERVER, 5, status, headers)
    assert type(found) is ServerError
    assert str(found) == f"{SERVER}: {text}"


def test_a_good_answer_is_no_error_and_a_bare_404_is_an_unknown_command() -> None:
    assert read_error(SERVER, 5, 200, {}) is None
    found = read_error(SERVER, 5, 404, {})
    assert type(found) is UnknownCommandError
    assert str(found) == f"{SERVER}: status 404"


def test_a_known_error_counts_though_its_cause_is_unknown() -> None:
    headers = {
        "x-dbus-error": "com.linkedin.databus2.BootstrapDatabaseTooYoungException",
        "x-dbus-error-cause": "java.sql.SQLException",
    }
    found = read_error(SERVER, 5, 500, headers)
    assert type(found) is BootstrapTooYoungError


def test_a_text_that_is_no_header_is_made_one() -> None:
    headers = error_headers(BootstrapTooOldError("größer\r\nx: y" + "z" * 2000))
    assert headers["x-dbus-error-message"].startswith("gr er x: yz")
    assert len(headers["x-dbus-error-message"]) == 1000


def test_three_dots_in_one_character_are_not_lost_in_a_header() -> None:
    error = raised(RequestError("`start` = gtid-set:… or an SCN"))
    assert "`start` = gtid-set:... or an SCN" in str(error)
