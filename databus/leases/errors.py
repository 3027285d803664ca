"""The errors of leases, and of what is written under them; `schemas/errors.py` has all others.

LeaseError                    a lease store cannot be used as it is
├── LeaseUnavailableError     it cannot be reached now; retrying may help
├── LeaseLostError            the caller does not hold its lease any more
└── StaleTermError            a write under a lease that has a newer owner

UnknownGroupError             a RequestError: no such group of consumers at the coordinator
"""

from __future__ import annotations

from databus.schemas.errors import DatabusError, RequestError


class LeaseError(DatabusError):
    """A lease store cannot be used as it is; the text says what to do."""


class LeaseUnavailableError(LeaseError):
    """A lease store cannot be reached now. Leases that are held last until they run out."""

    status = 503

    def __init__(self, store: str, problem: object) -> None:
        super().__init__(f"{store} cannot be used now: {problem}")
        self.store = store


def refusal(store: str, problem: object, advice: str, *, has_served: bool) -> LeaseError:
    """Return the error of a store that refuses its user.

    It is final, unless the store has served that user before: then somebody works on the rights.
    """
    text = f"it refuses the user of its URL: {problem}; {advice}"
    if has_served:
        return LeaseUnavailableError(store, f"{text}. It is asked again")
    return LeaseError(f"{store} cannot be used: {text}")


class LeaseLostError(LeaseError):
    """The caller does not hold its lease any more, by its own clock: it must not write."""

    status = 409

    def __init__(self, name: str, term: int, why: str) -> None:
        super().__init__(f"lease {name!r}, term {term}, is not held any more: {why}")
        self.name, self.term = name, term


class StaleTermError(LeaseError):
    """A write under a lease that has had a newer owner since; nothing was written."""

    status = 409

    def __init__(self, what: str, term: int, newest: int) -> None:
        super().__init__(
            f"{what} was not written: its term is {term}, and term {newest} has begun, so the "
            "lease has another owner. Stop writing, and acquire the lease again"
        )
        self.term, self.newest = term, newest


def check_term(what: str, term: int, newest: int | None) -> None:
    """Raise StaleTermError if a greater term has begun; `newest` is None if none ever has."""
    if newest is not None and term < newest:
        raise StaleTermError(what, term, newest)


class UnknownGroupError(RequestError):
    """The coordinator has no such group, or it has not been looked at."""

    status = 404

    def __init__(self, group: str, known: list[str], problem: str = "") -> None:
        why = f"; {problem}" if problem else ""
        super().__init__(f"unknown group {group!r}; known: {', '.join(known) or 'none'}{why}")
