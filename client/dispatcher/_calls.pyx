# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""Makes a consumer's callbacks; `calls` has the same in Python, and what makes failures.

Between two events there is a call of the application's function, a look at the clock and two
comparisons. The clock is the system's, read without a float for it, if it is `time.monotonic`.
"""

from time import monotonic

from databus.client.consumer import Result
from databus.client.events._event_fields import EventRun
from databus.client.events.data_event import StatementEvent
from databus.client.dispatcher.calls import FailedError, checked, failure_of_call, late, strongest

cdef extern from "<time.h>" nogil:
    ctypedef int clockid_t
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(clockid_t clock, timespec* at)
    clockid_t CLOCK_MONOTONIC

cdef object _SUCCESS = Result.SUCCESS


cdef class Caller:
    """Makes callbacks on one thread; `running` may be called from any."""

    cdef double _budget_s
    cdef object _clock
    cdef bint _is_monotonic
    # `_is_running` is written last and cleared first, so that one callback is never blamed for
    # the time of another.
    cdef bint _is_running
    cdef double _since_s
    cdef object _callback

    def __init__(self, double budget_s, clock):
        """Fail a callback that takes longer than `budget_s`."""
        self._budget_s = budget_s
        self._clock = clock
        self._is_monotonic = clock is monotonic
        self._is_running = False

    def running(self):
        """Return the callback that has not returned, and for how long it runs; None without one."""
        cdef double since_s = self._since_s
        cdef object callback = self._callback
        return (callback, self._now_s() - since_s) if self._is_running else None

    def end(self):
        """Say that no callback runs."""
        self._is_running = False

    def call(self, callback, *arguments):
        """Make a callback; raise FailedError if it fails."""
        return self._call(callback, arguments)

    def call_each(self, callback, events):
        """Make the callback of each event."""
        return self._call_each(callback, events)

    def deliver(self, callbacks, scn, groups):
        """Make the callbacks of a window or page; raise FailedError at the first that fails."""
        cdef object result = _SUCCESS, source, events
        # fmt: off
        (start, start_source, on_event, end_source, end, on_checkpoint,
         on_ddl, _, on_events, on_statement) = callbacks
        # fmt: on
        # An empty window has no start and no end; it only moves the checkpoint.
        if groups:
            if start is not None:
                result = _join(result, self._call(start, (scn,)))
            for source, events in groups:
                if source is None:
                    told = on_statement if isinstance(events[0], StatementEvent) else on_ddl
                    result = _join(result, self._call_each(told, events))
                    continue
                if start_source is not None:
                    result = _join(result, self._call(start_source, (source,)))
                if on_events is not None:
                    result = _join(result, self._call(on_events, (tuple(events),)))
                elif on_event is not None:
                    result = _join(result, self._call_each(on_event, events))
                if end_source is not None:
                    result = _join(result, self._call(end_source, (source,)))
            if end is not None:
                result = _join(result, self._call(end, (scn,)))
        if on_checkpoint is not None:
            result = _join(result, self._call(on_checkpoint, (scn,)))
        return result

    cdef double _now_s(self) except? -1.0:
        cdef timespec at
        if self._is_monotonic:
            clock_gettime(CLOCK_MONOTONIC, &at)
            return at.tv_sec + at.tv_nsec * 1e-9
        return self._clock()

    cdef void _begin(self, object callback, double since_s):
        self._callback = callback
        self._since_s = since_s
        self._is_running = True

    cdef object _call(self, object callback, tuple arguments):
        cdef double since_s, took_s
        cdef object returned
        # The watchdog must not see the last callback's time beside this one's name.
        self._is_running = False
        try:
            since_s = self._now_s()
            self._begin(callback, since_s)
            returned = callback(*arguments)
            took_s = self._now_s() - since_s
            if took_s > self._budget_s:
                raise late(took_s, self._budget_s)
            return _SUCCESS if returned is None else checked(returned)
        except BaseException as error:
            raise FailedError(failure_of_call(error, callback, arguments)) from error

    cdef object _call_each(self, object callback, object events):
        cdef double since_s, now_s
        cdef object returned, result = _SUCCESS, event = None
        self._is_running = False
        try:
            since_s = self._now_s()
            self._begin(callback, since_s)
            # Such events end, one after the other, unless the callback keeps them.
            for event in events.one_by_one() if type(events) is EventRun else events:
                returned = callback(event)
                now_s = self._now_s()
                if now_s - since_s > self._budget_s:
                    raise late(now_s - since_s, self._budget_s)
                self._since_s = since_s = now_s
                if returned is not None and returned is not _SUCCESS:
                    result = strongest((result, checked(returned)))
        except BaseException as error:
            raise FailedError(failure_of_call(error, callback, (event,))) from error
        return result


cdef inline object _join(object result, object found):
    return result if found is _SUCCESS else strongest((result, found))
