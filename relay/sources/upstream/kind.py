"""Another relay as a kind of source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from databus.conf.settings import PhysicalSourceSettings, ServerAccessSettings
from databus.doctor.checks import Check, error, ok
from databus.doctor.machine import MACHINE
from databus.doctor.servers import check_servers
from databus.relay.sources.kind import CheckRequest, SourceKind
from databus.relay.sources.upstream.answers import read_sources
from databus.relay.sources.upstream.probe import UpstreamProbe
from databus.relay.sources.upstream.requests import Upstream, url_of
from databus.relay.sources.upstream.source import UpstreamSource
from databus.schemas.errors import SettingsError, SourceError


def _open(settings: PhysicalSourceSettings, data_dir: Path | None) -> UpstreamSource:  # noqa: ARG001
    return UpstreamSource(settings)


def _source_ids(settings: PhysicalSourceSettings) -> Mapping[str, int]:
    problems, others = [], []
    for uri in settings.uris:
        with closing(Upstream(settings.at(uri))) as upstream:
            try:
                found = upstream.get(
                    "/physicalSources", lambda value: read_sources(value, settings.name)
                )
            except SourceError as problem:
                problems.append(str(problem))
                continue
        if isinstance(found, Mapping):
            return found
        others.append(f"relay {upstream.url} has {', '.join(found) or 'none'}")
    if others:
        raise SettingsError(
            f"{settings.name}: {'; '.join(others)}, but no physical source {settings.name}. The "
            "names must be equal: change `name`, or `uri`"
        )
    raise SettingsError(
        f"{settings.name}: at its first start a relay takes the ids of its sources from the relay "
        f"that it reads: {'; '.join(problems)}. Start that one first, or write the `id` of each "
        "source as it has it"
    )


def _probe_log(settings: PhysicalSourceSettings) -> UpstreamProbe:
    return UpstreamProbe(settings)


def _check(request: CheckRequest) -> list[Check]:
    return list(_checks(request))


def _checks(request: CheckRequest) -> Iterator[Check]:
    settings = request.settings
    access = ServerAccessSettings(
        token_file=settings.upstream_token_file, tls_ca=settings.upstream_tls_ca
    )
    urls = [url_of(uri) for uri in settings.uris]
    yield from check_servers(
        f"{request.subject}: relays", urls, access, settings.source_names, MACHINE
    )
    if not request.reads_log:
        return
    scn = request.newest_scn
    for uri in settings.uris:
        subject = f"{request.subject}: {url_of(uri)}"
        with closing(UpstreamSource(settings.at(uri))) as source:
            try:
                source.open(scn)
                source.read()
            except SourceError as problem:
                yield error(subject, str(problem))
            else:
                after = "" if scn is None else f" after scn {scn}"
                yield ok(subject, f"has the source, and what follows{after}")


KIND = SourceKind(open=_open, check=_check, probe_log=_probe_log, source_ids=_source_ids)
