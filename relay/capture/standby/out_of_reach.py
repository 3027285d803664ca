"""Whether a relay that cannot read the database leaves capture to one that may. Pure.

It may be this relay that is cut off, or its disk that is full. So after some patience it lets go of
the lease, and does not contend for a while. Where no other relay has taken it by then, it tries on.
"""

from __future__ import annotations


class OutOfReach:
    """Counts for how long this relay captures and cannot; times in seconds, of one clock."""

    def __init__(self, patience_s: float, rest_s: float) -> None:
        self._patience_s, self._rest_s = patience_s, rest_s
        self._since_s: float | None = None
        self._rests_until_s = float("-inf")

    def may_capture(self, now_s: float, *, is_in_vain: bool) -> bool:
        """Return whether to hold the lease now; call it often.

        `is_in_vain`: this relay has the lease, and cannot read the database at the moment.
        """
        if now_s < self._rests_until_s:
            return False
        if not is_in_vain:
            self._since_s = None
            return True
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < self._patience_s:
            return True
        self._since_s, self._rests_until_s = None, now_s + self._rest_s
        return False
