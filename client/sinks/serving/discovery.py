"""Which sources a sink reads, of which physical source each is, and who has them: servers say."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from databus.cli.api_client import ApiClient
from databus.client.finding import ServerFinder
from databus.client.machines.server_set import Servers
from databus.conf.patterns import NamePatterns, is_pattern, unescaped
from databus.conf.settings import ClientSettings
from databus.daemon.credentials import ServerAccess
from databus.daemon.http.client import FAILURES, HttpClient
from databus.daemon.tokens import read_token
from databus.schemas.checkpoint import Checkpoint
from databus.schemas.errors import DatabusError, NoAnswerError, SettingsError
from databus.schemas.protocol import Header, Parameter

OK = 200
_TIMEOUT_S = 10.0
_PROBE_BYTES = 1024
_MAX_BYTES = 64 << 20  # of an answer, which has one event at least


class RelayLook:
    """Asks the relays what they capture, and bootstrap servers what they keep. Thread-safe."""

    def __init__(self, settings: ClientSettings) -> None:
        """Raises SettingsError for a coordinator of no known kind."""
        self._access = settings.access
        self._lock = threading.Lock()
        self._finder = ServerFinder(settings, self._take)
        self._servers = self._finder.first

    def start(self) -> None:
        """Begin to look for servers, where a coordinator lists them."""
        self._finder.start()

    def stop(self) -> None:
        """Look no more."""
        self._finder.stop()

    def sources(self) -> dict[str, list[str]]:
        """Return the names of sources by physical source, of the first relay that answers.

        Raises NoAnswerError if none does.
        """
        problems = []
        for url in self._relays():
            try:
                told = self._api(url).get_json("/physicalSources")
                return {one["name"]: [s["name"] for s in one["sources"]] for one in told}
            except (DatabusError, TypeError, KeyError) as error:
                problems.append(_shown(url, error))
        raise NoAnswerError("no relay answers", "; ".join(problems) or "none is known")

    def oldest_scn(self, sources: Sequence[str]) -> int | None:
        """Return the SCN of the oldest window that a relay has of these sources.

        All their changes since then are there; since they are captured, if it still has that.
        0: it has everything. None if no relay answers, or if none has them.
        """
        parameters = {
            Parameter.SOURCES: ",".join(sources),
            Parameter.CHECKPOINT: Checkpoint.at(0).to_json(),
            Parameter.SIZE: str(_PROBE_BYTES),
            Parameter.EVENT_VERSION: "2",
            Parameter.WAIT_MS: "0",
        }
        for url in self._relays():
            with closing(self._client(url)) as client, suppress(*FAILURES):
                answer = client.get("/stream", parameters)
                oldest = answer.headers.get(Header.OLDEST_SCN, "")
                if answer.status == OK or oldest.isdecimal():
                    return 0 if answer.status == OK else int(oldest)
        return None

    def place_at(self, source: str, others: Sequence[str], time_s: float) -> Checkpoint | None:
        """Return the place of a time in what a relay holds, or the end of it that is nearer.

        None if no relay tells it.
        """
        at = datetime.fromtimestamp(time_s, UTC).isoformat().replace("+00:00", "Z")
        query = urlencode({"at": f"time:{at}", "nearest": "true", "others": ",".join(others)})
        for url in self._relays():
            with suppress(DatabusError, TypeError, KeyError, ValueError):
                found = self._api(url).get_json(
                    f"/api/v1/sources/{quote(source, safe='')}/position?{query}"
                )
                scn = found["scn"]
                return Checkpoint.flexible() if scn is None else Checkpoint.at(int(scn))
        return None

    def has_beginning(self, physical: str, source: str, oldest: int) -> bool:
        """Whether a relay has all that was ever captured of a source; `oldest_scn` says since when.

        It has if the table was made, or first captured, after the oldest window that it holds.
        False if that is not known.
        """
        if oldest == 0:
            return True
        for url in self._relays():
            with suppress(DatabusError, TypeError, KeyError, ValueError):
                client = self._api(url)
                view = client.get_json(f"/api/v1/physicalSources/{quote(physical, safe='')}")
                schemas = client.get_json("/api/v1/schemas")["sources"]
                versions = [one["versions"] for one in schemas if one["source"] == source]
                # A source without a version is one that the relay takes in just now.
                made = [one[0]["sinceScn"] for one in versions if one]
                return oldest > _oldest_held(view) or any(int(scn or -1) >= oldest for scn in made)
        return False

    def kept(self) -> frozenset[str] | None:
        """Return the sources that the first bootstrap server which answers keeps.

        None without bootstrap servers. Raises NoAnswerError if none answers.
        """
        with self._lock:
            servers = self._servers.bootstraps
        problems = []
        for url in servers:
            try:
                return frozenset(str(one["name"]) for one in self._api(url).get_json("/sources"))
            except (DatabusError, TypeError, KeyError) as error:
                problems.append(_shown(url, error))
        if problems:
            raise NoAnswerError("no bootstrap server answers", "; ".join(problems))
        return None

    def _api(self, url: str) -> ApiClient:
        return ApiClient(url, read_token(self._access), self._access.tls_ca, _TIMEOUT_S)

    def _client(self, url: str) -> HttpClient:
        return HttpClient(
            url,
            ServerAccess(self._access),
            connect_timeout_s=_TIMEOUT_S,
            response_timeout_s=_TIMEOUT_S,
            max_bytes=_MAX_BYTES,
        )

    def _relays(self) -> Sequence[str]:
        with self._lock:
            return self._servers.relays

    def _take(self, servers: Servers) -> None:
        with self._lock:
            self._servers = servers


def _shown(url: str, error: Exception) -> str:
    """Return an error with the server that it is of."""
    return str(error) if url in str(error) else f"{url}: {error!r}"


def _oldest_held(view: Mapping[str, Any]) -> int:
    """Return the SCN of the oldest window of a physical source, by its view in a relay's API."""
    found = view["relayLog"] or {}
    places = (view["ring"] or {}, found, found.get("archive") or {})
    return min(int(one["minScn"]) for one in places if one.get("minScn") is not None)


def chosen(
    patterns: Sequence[str], captured: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Return the sources that patterns choose, by physical source, in alphabetical order.

    Raises SettingsError for a name without wild characters that no relay captures.
    """
    match = NamePatterns(patterns).match
    every = {name for names in captured.values() for name in names}
    for text in patterns:
        if not is_pattern(text) and unescaped(text) not in every:
            known = ", ".join(sorted(every)) or "nothing"
            raise SettingsError(f"source {text} is not captured; the relay has {known}")
    found = {
        physical: tuple(sorted(name for name in names if match(name)))
        for physical, names in captured.items()
    }
    return {physical: names for physical, names in found.items() if names}
