"""Sends the windows of a streamed response that are read and sent at once, as nearly all are.

A task that is woken for each transaction costs more than reading and sending it. So the notifier
calls `send_at_once` itself. What does not end there is left to the request's task, which finds
everything as it was: an error, a full socket, a window that is larger than what may be sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from databus.relay.serving.reading.marks import ends_with_rows
from databus.relay.serving.reading.request_tracker import RequestTracker
from databus.relay.serving.reading.stream import StreamJob, StreamResponse
from databus.schemas.errors import DatabusError


class Follower:
    """Where a streamed response is. On the loop's thread only."""

    def __init__(
        self,
        job: StreamJob,
        tail: Callable[[], int],
        tracker: RequestTracker,
        left_bytes: int,
        send: Callable[[bytes], bool],
        until: tuple[float, float],
    ) -> None:
        """`send` sends a part without waiting, or returns False and sends nothing.

        `until`: when the response ends, and when it ends if it is unproved, by the monotonic clock.
        """
        self.left_bytes = left_bytes
        # Whether what was sent ends without rows: the client cannot know the log again by it.
        self.is_unproved = False
        self._job = job
        self._tail = tail
        self._tracker = tracker
        self._send = send
        self._until = until

    def serves(self, response: StreamResponse) -> None:
        """Record windows that are sent; `goes_on` must follow."""
        self.left_bytes -= len(response.body)
        self.is_unproved = not ends_with_rows(response.body)
        self._tracker.serves(len(response.body))

    def goes_on(self, response: StreamResponse) -> None:
        """Continue behind windows that were sent."""
        self._job.go_on(response)
        self._tracker.goes_on(self._job)

    @property
    def left_s(self) -> float:
        """How long the response goes on."""
        end, prove_at = self._until
        return (min(end, prove_at) if self.is_unproved else end) - time.monotonic()

    @property
    def is_at_end(self) -> bool:
        """Whether every window is sent."""
        return self._job.position == self._tail()

    def send_at_once(self) -> bool:
        """Send what has come; return False if there is something left to do."""
        if self.is_at_end:
            return True
        was_unproved = self.is_unproved
        try:
            self._job.start(self.left_bytes)
            response = self._job.step()
        except DatabusError:
            return False
        if response is None or not response.has_whole_windows or not self._send(response.body):
            return False
        self.serves(response)
        self.goes_on(response)
        # The task ends the response soon if it has become unproved.
        became_unproved = self.is_unproved and not was_unproved
        return not became_unproved and self.is_at_end
