"""The rules for judging observations: values in, problems out. No I/O.

What the consumer wrote down is held against the order of the transactions (the rules of the
torture: order, gaps, torn windows, nothing twice but from a checkpoint on). What relay, bootstrap
pair and client said of themselves is held against what was done to them and when: who looks well
longer after a cause began than the attack allows shows false health.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.torture.checks import Findings, LogCheck
from benchmarks.torture.log import Delivery

Who = Literal["relay", "bootstrap", "client"]
MOST_SHOWN = 4
MOST_SILENT_S = 45.0  # without an answer from a process that runs


@dataclass(frozen=True, slots=True)
class Look:
    """One process's report at a moment; status 0 = no answer."""

    at_s: float
    who: Who
    status: int
    health: str
    figures: Mapping[str, float] = field(default_factory=dict)
    page: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cause:
    """A problem, its begin and end, and who had to report it within which time."""

    text: str
    begin_s: float
    end_s: float
    within_s: float
    who: tuple[Who, ...]


@dataclass
class Evidence:
    """The observations of one attack."""

    deliveries: Sequence[Delivery] = ()
    committed: int | None = None  # transactions that had to come; None = those before a stop
    looks: Sequence[Look] = ()
    causes: Sequence[Cause] = ()
    ended: Mapping[str, int] = field(
        default_factory=dict
    )  # processes that ended by themselves, with their status
    broken: Sequence[str] = ()  # waits that timed out


def judge(evidence: Evidence) -> list[str]:
    """Return all problems, the worst first; empty when the attack was withstood."""
    found = [*_wrongly_delivered(evidence), *_falsely_well(evidence)]
    found += [f"{name} ended with {status}" for name, status in evidence.ended.items()]
    return [*found, *evidence.broken]


def _wrongly_delivered(evidence: Evidence) -> Iterator[str]:
    findings = Findings()
    check = LogCheck(findings)
    paged: set[tuple[int, int, int]] = set()
    floor = 0
    for delivery in evidence.deliveries:
        if delivery.kind == "page":
            paged.update(delivery.stamps)
            floor = max([floor, *(tx for tx, _, _ in delivery.stamps)])
        elif delivery.kind in ("start", "window", "rollback", "problem"):
            if not paged or delivery.kind == "problem":
                check.take(delivery)
            else:
                paged.update(delivery.stamps)
    if paged:
        yield from _torn_or_missing(paged, evidence.committed or floor)
    else:
        check.finish(evidence.committed or 0)
    for problem in findings.problems[:MOST_SHOWN]:
        yield f"silent loss or wrong row: {problem}"


def _torn_or_missing(stamps: Iterable[tuple[int, int, int]], committed: int) -> Iterator[str]:
    """Check a consumer that read pages: their order may differ, but all rows must arrive."""
    rows: dict[int, set[int]] = {}
    wanted: dict[int, int] = {}
    for tx, row, of in stamps:
        rows.setdefault(tx, set()).add(row)
        wanted[tx] = of
    missing = [tx for tx in range(1, committed + 1) if tx not in rows]
    torn = [tx for tx, of in wanted.items() if len(rows[tx]) != of]
    if missing:
        yield f"silent loss or wrong row: {len(missing)} transactions never came: {missing[:5]}"
    if torn:
        yield f"silent loss or wrong row: transactions came in parts: {torn[:5]}"


def _falsely_well(evidence: Evidence) -> Iterator[str]:
    for cause in evidence.causes:
        for who in cause.who:
            seen = [
                look
                for look in evidence.looks
                if look.who == who and cause.begin_s + cause.within_s <= look.at_s < cause.end_s
            ]
            if not seen:
                yield f"nobody looked at the {who} while {cause.text}"
            reasons: dict[str, float] = {}
            for look in seen:
                for reason in reasons_to_think_well(look):
                    reasons.setdefault(reason, look.at_s - cause.begin_s)
            for reason, after_s in reasons.items():
                yield f"false health: {cause.text} for {after_s:.0f} s, and the {who} says {reason}"


def reasons_to_think_well(look: Look) -> Iterator[str]:
    """Return the signs by which a process claims to be healthy."""
    if look.status == 0:
        return
    if look.status == 200:
        yield "/health 200"
    if look.who == "relay":
        yield from _by_metrics(look.figures)
        yield from _by_page(look.page)
    elif look.who == "client":
        lag = [value for name, value in look.figures.items() if "client_lag_seconds" in name]
        if 0.0 in lag:
            yield "client_lag_seconds 0"


def _by_metrics(figures: Mapping[str, float]) -> Iterator[str]:
    for name, value in figures.items():
        if "source_state{" in name and 'state="running"' in name and value == 1:
            yield 'source_state{state="running"} 1'
        if "relay_connected{" in name and value == 1:
            yield "connected 1"
        if "log_behind_seconds{" in name and value == 0:
            yield "log_behind_seconds 0"


def _by_page(page: Mapping[str, Any]) -> Iterator[str]:
    for source in page.get("physicalSources", ()):
        if source["state"] == "running":
            yield "state running on its page"
        if (source.get("log") or {}).get("behindS") == 0:
            yield "0 s behind the log on its page"
    for client in page.get("clients", ()):
        if client.get("state") == "live":
            yield "a client that is live on its page"


def hangs(looks: Sequence[Look], who: Who, begin_s: float, end_s: float) -> str:
    """Return the processes that ran all the time and did not answer for too long."""
    silent_since: float | None = None
    for look in looks:
        if look.who != who or not begin_s <= look.at_s <= end_s:
            continue
        if look.status:
            silent_since = None
        elif silent_since is None:
            silent_since = look.at_s
        elif look.at_s - silent_since > MOST_SILENT_S:
            return f"hang: the {who} did not answer for {look.at_s - silent_since:.0f} s"
    return ""
