"""The checks of `databus doctor` on relays and bootstrap servers: health, sources, clocks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from databus.cli.api_client import ApiClient
from databus.conf.settings import ServerAccessSettings
from databus.daemon.tokens import read_token
from databus.doctor.checks import Check, Verdict, error, has_errors, ok, warning
from databus.doctor.machine import ASK_S, Machine
from databus.schemas.errors import DatabusError

CLOCK_WARNING_S = 3.0  # an answer says whole seconds
CLOCK_ERROR_S = 300.0


def check_servers(
    subject: str,
    urls: Collection[str],
    access: ServerAccessSettings,
    wanted: Collection[str],
    machine: Machine,
) -> list[Check]:
    """Check the health and the sources of each server; `wanted` are the sources it must have.

    Servers of one kind replace each other: one that does not answer is a
    warning, none that answers is an error.
    """
    try:
        token = read_token(access)
    except DatabusError as problem:
        return [error(subject, str(problem))]
    answers = [
        check_server(subject, ApiClient(url, token, access.tls_ca, ASK_S), wanted, machine)
        for url in urls
    ]
    if any(not has_errors(checks) for checks in answers):
        answers = [[_mild(check) for check in checks] for checks in answers]
    return [check for checks in answers for check in checks]


def check_server(
    subject: str, server: ApiClient, wanted: Collection[str], machine: Machine
) -> list[Check]:
    """Check one server."""
    try:
        asked = server.get("/sources")
        names = {str(one["name"]) for one in asked.value}
    except DatabusError as problem:
        return [error(subject, f"{problem}; is it started, is the URL right?")]
    except (KeyError, TypeError):
        return [error(subject, f"{server.url}: /sources is no list of sources: is it a databus?")]
    missing = sorted(set(wanted) - names)
    if missing:
        text = f"{server.url} has no source {', '.join(missing)}; add it to its settings, or "
        return [error(subject, f"{text}read one of: {', '.join(sorted(names))}")]
    found = [ok(subject, f"{server.url} answers, with {len(names)} sources")]
    if asked.clock_s is not None:
        found += check_clock(f"clock of {server.url}", asked.clock_s, machine.now_s(), always=False)
    return [*found, *_health(subject, server)]


def check_clock(subject: str, other_s: float, now_s: float, *, always: bool = True) -> list[Check]:
    """Compare another machine's clock with this one's."""
    apart_s = other_s - now_s
    text = f"{abs(apart_s):.1f} s {'ahead of' if apart_s > 0 else 'behind'} this machine's"
    advice = "lags are wrong by that: run NTP (chrony, systemd-timesyncd) on both"
    if abs(apart_s) >= CLOCK_ERROR_S:
        return [error(subject, f"is {text}; {advice}")]
    if abs(apart_s) >= CLOCK_WARNING_S:
        return [warning(subject, f"is {text}; {advice}")]
    return [ok(subject, "agrees with this machine's")] if always else []


def _mild(check: Check) -> Check:
    if check.verdict is not Verdict.ERROR:
        return check
    return warning(check.subject, f"{check.text} The others are used.")


def _health(subject: str, server: ApiClient) -> list[Check]:
    try:
        server.get_json("/health")
    except DatabusError as problem:
        told = _problems_of(server)
        advice = told or str(problem)
        return [warning(subject, f"{server.url} is not healthy: {advice}")]
    return []


def _problems_of(server: ApiClient) -> str:
    """Return the problems that a relay reports for its sources."""
    try:
        sources: Any = server.get_json("/controlSources/status")
        told = [
            f"{name} is {one['state']}" + (one["problem"] and f": {one['problem']}")
            for name, one in sources.items()
            if one["problem"] or one["state"] == "starting"
        ]
    except (DatabusError, KeyError, TypeError, AttributeError):
        return ""
    return "; ".join(told)
