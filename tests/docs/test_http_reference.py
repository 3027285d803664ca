"""docs/reference/http.md has every route, parameter and error of the relay, and only those."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request

import pytest

from databus.relay.serving.databus.handlers import COMMANDS
from databus.schemas import errors
from databus.schemas.parameters import PROTOCOL_VERSIONS
from databus.schemas.protocol import Header, Parameter
from databus.schemas.rendering import Output
from tests.docs.shop import make_shop
from tests.docs.terminal import Reader
from tools.repository import ROOT

BOOTSTRAP_PAGE = (ROOT / "docs" / "bootstrap.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")
SHELL = ("/health", "/ready", "/metrics")
VERBS = {
    "/controlSources": ("status", "pause", "unpause", "shutdown", "start"),
    "/relayCommand": ("saveMetaState", "getPrevScn", "runGC"),
}
PARAMETERS = [value for name, value in vars(Parameter).items() if name.isupper()]
HEADERS = [value for name, value in vars(Header).items() if name.isupper()]


def fixed_part(route: str) -> str:
    """Return a route up to its first variable part."""
    return re.split(r"[(\[]", route)[0].rstrip("/")


@pytest.mark.parametrize("path", [fixed_part(route) for route, _ in COMMANDS] + list(SHELL))
def test_every_route_is_on_the_page(path: str) -> None:
    assert re.search(rf"`{re.escape(path)}[`/]", PAGE)


def test_no_other_path_is_on_the_page() -> None:
    known = {fixed_part(route) for route, _ in COMMANDS} | set(SHELL)
    shown = re.findall(r"^\| \[?`(/[^`]+)`(?:, `(/[^`]+)`)?", PAGE, re.M)
    named = {re.split(r"[<…]", path)[0].rstrip("/") for pair in shown for path in pair if path}
    assert named == known


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_is_on_a_page(name: str) -> None:
    assert re.search(rf"[`?&]{name}[`=]", PAGE + BOOTSTRAP_PAGE)


@pytest.mark.parametrize("name", HEADERS)
def test_every_header_is_on_a_page(name: str) -> None:
    assert re.search(rf"`{name}[`:]", PAGE + BOOTSTRAP_PAGE)


def test_every_output_and_protocol_version_is_on_the_page() -> None:
    assert all(f"`{output}`" in PAGE for output in Output)
    assert all(str(version) in PAGE for version in PROTOCOL_VERSIONS)


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidParameterError,
        errors.UnauthorizedError,
        errors.ForbiddenError,
        errors.TooSlowError,
        errors.UnknownCommandError,
        errors.UnknownSourceError,
        errors.ScnNotFoundError,
    ],
)
def test_the_errors_have_the_status_that_the_page_says(error: type[errors.DatabusError]) -> None:
    (line,) = [
        line for line in PAGE.splitlines() if line.startswith("|") and error.wire_name in line
    ]
    assert f"| {error.status} |" in line


def test_each_verb_and_the_filter_of_the_page_is_understood(reader: Reader) -> None:
    make_shop(reader.folder)
    (reader.folder / "relay.toml").write_text(
        'data_dir = "data"\n[[physical_sources]]\nname = "shop"\nuri = "sqlite:shop.db"\n'
        'sources = ["shop.orders"]\n'
    )
    reader.start_relay()
    for path, verbs in VERBS.items():
        for verb in verbs:
            assert f"`{verb}`" in PAGE
            is_look = verb in ("status", "getPrevScn")
            assert reader.get(f"{path}/{verb}", "GET" if is_look else "POST")
    (shown,) = re.findall(r"`(\{\"<id>\".*?\})`", PAGE)
    filters = urllib.parse.quote(shown.replace("<id>", "1"))
    url = f"{reader.url}/stream?sources=1&size=1000&filters="
    with urllib.request.urlopen(url + filters) as answer:
        assert answer.status == 200
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url + "nonsense")
    with refused.value as answer:
        assert set(json.loads(answer.read())) == {"error", "message"}
