"""What other relays say of themselves: `GET /api/v1/relays`, for one page that shows them all.

A thread asks each of them while somebody looks at the page, so that no request waits for a relay
that is frozen. Of one that does not answer nothing is known, and nothing is shown of it but since
when.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from pydantic import Field

from databus.cli.api_client import ApiClient
from databus.conf.settings import OtherRelaysSettings
from databus.daemon.http.openapi import ApiModel, Call, Endpoint
from databus.daemon.tokens import read_token
from databus.relay.relay import Relay
from databus.schemas.errors import DatabusError

EVERY_S = 3.0
TIMEOUT_S = 3.0
_THREADS = 8
_FIRST_STEPS, _FIRST_STEP_S = 50, 0.02


class OtherSource(ApiModel, extra="ignore"):
    """A physical source of another relay."""

    name: str
    state: str
    is_connected: bool = Field(description="Its database was heard from just now")
    problem: str
    delay_s: float | None = Field(description="From commit to ring; None = unknown")


class OtherRelay(ApiModel):
    """Another relay, as it says itself. While it does not answer, nothing else is known of it."""

    url: str
    seen_at: float | None = Field(default=None, description="When it answered last; None = never")
    problem: str = Field(default="", description="Why nothing is known of it now")
    version: str = ""
    is_healthy: bool | None = Field(default=None, description="None = unknown")
    sources: list[OtherSource] = []
    clients: dict[str, int] | None = Field(
        default=None, description="Number of its consumers in each state; None = unknown"
    )


class OtherRelays(ApiModel):
    """The relays of `other_relays` in the settings."""

    relays: list[OtherRelay]


# A newer relay may say more.
class _RelayAnswer(ApiModel, extra="ignore"):
    version: str
    is_healthy: bool


class _SourcesAnswer(ApiModel, extra="ignore"):
    physical_sources: list[OtherSource]


class _ClientAnswer(ApiModel, extra="ignore"):
    state: str


class _ClientsAnswer(ApiModel, extra="ignore"):
    clients: list[_ClientAnswer]


class RelaysElsewhere:
    """The endpoint, and what asks the other relays."""

    def __init__(self, relay: Relay) -> None:
        """Ask nobody yet."""
        self._relay = relay
        self._seen: dict[str, OtherRelay] = {}
        self._asked_s: dict[str, float] = {}
        self._asking: dict[str, Future[None]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "other-relays")
        self._is_stopped = False

    def endpoints(self, root: str) -> Sequence[Endpoint]:
        """Return its endpoint."""
        text = "The other relays of the settings, as they say themselves"
        return (Endpoint("GET", f"{root}/relays", text, OtherRelays, self.relays),)

    async def relays(self, _call: Call) -> OtherRelays:
        """Return what is known of them, which is asked for again when it is some seconds old."""
        for url in self._settings.urls:
            self._ask(url)
        for _ in range(_FIRST_STEPS):
            if not self._waits_for_first():
                break
            await asyncio.sleep(_FIRST_STEP_S)
        return OtherRelays(relays=list(self._seen.values()))

    @property
    def _settings(self) -> OtherRelaysSettings:
        return self._relay.settings.other_relays

    def stop(self) -> None:
        """Ask nobody any more; does not wait for an answer."""
        self._is_stopped = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _waits_for_first(self) -> bool:
        return any(one.seen_at is None and not one.problem for one in self._seen.values())

    def _ask(self, url: str) -> None:
        known = self._seen.setdefault(url, OtherRelay(url=url))
        asking, now_s = self._asking.get(url), self._relay.clock.monotonic_s()
        if self._is_stopped or (asking is not None and not asking.done()):
            return
        if now_s - self._asked_s.get(url, float("-inf")) >= EVERY_S:
            self._asked_s[url] = now_s
            self._asking[url] = self._threads.submit(self._look, url, known.seen_at)

    def _look(self, url: str, seen_at: float | None) -> None:
        try:
            self._seen[url] = self._read(url)
        except DatabusError as error:
            text = str(error).removeprefix(f"{url}: ")
            self._seen[url] = OtherRelay(url=url, seen_at=seen_at, problem=text)
        except Exception as error:
            # A mistake of this process: a view that stands still would look well.
            self._seen[url] = OtherRelay(url=url, seen_at=seen_at, problem=repr(error))
            raise

    def _read(self, url: str) -> OtherRelay:
        settings = self._settings
        api = ApiClient(url, read_token(settings), settings.tls_ca, timeout_s=TIMEOUT_S)
        relay = api.read(_RelayAnswer, api.get_json("/api/v1/relay"))
        sources = api.read(_SourcesAnswer, api.get_json("/api/v1/physicalSources"))
        clients = api.read(_ClientsAnswer, api.get_json("/api/v1/clients"))
        return OtherRelay(
            url=url,
            seen_at=self._relay.clock.wall_ns() / 1e9,
            version=relay.version,
            is_healthy=relay.is_healthy,
            sources=sources.physical_sources,
            clients=Counter(client.state for client in clients.clients),
        )
