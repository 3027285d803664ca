# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The fields of an event that most callbacks read. `event_fields` has the same in Python.

`make_runs` makes the events of a window without a call for each. The garbage collector does not
track an event until its row is read: only then can an application put the event into a cycle.
While callbacks run it tracks none, and then those that somebody has kept, by `track_kept`. Of a
page of thousands of rows it would otherwise look at every event several times.

Events are made where they lie, in the bytes of a response. One that somebody keeps gets bytes of its
own when the window ends, and not before: `track_kept` and `LentEvents` see to it.

A callback for each event needs only one of them at a time, so `EventRun.one_by_one` makes only one,
which is each event in turn until somebody keeps it. Rows alone need no events: `make_rows`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_REFCNT
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from databus.schemas.event.metadata import METADATA_DIGEST
from databus.schemas.rows._row_decoder import DECODE_ROW, RowDecoder
from databus.schemas.stream._row_cutter import PackedRows, PackedRun

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(PyObject* thing)
    void PyObject_GC_Track(PyObject* thing)
    int PyObject_GC_IsTracked(PyObject* thing)

include "../../schemas/rows/decode_row.pxi"
include "../../schemas/stream/row_events.pxi"

cdef DecodeRow _decode_row = <DecodeRow>PyCapsule_GetPointer(DECODE_ROW, NULL)
cdef object _RowDecoder = RowDecoder

# Places in `row_event.RowEvent`.
cdef enum:
    SCN = 0
    TIMESTAMP_NS = 1
    SRC_ID = 2
    KEY = 4
    OPCODE = 5
    ROW_DIGEST = 6
    WIRE = 8
    PLACE = 9
    IS_PLAIN = 10

cdef tuple _NOTHING = ()


cdef class EventFields:
    """The fields of a row event, and its row, which is decoded at the first access."""

    # The event; None while it is read where it lies, in the bytes of a `PackedRun`.
    cdef tuple _made
    cdef object _run
    cdef bytes _data  # the run's
    cdef Py_ssize_t _begin
    cdef object _decoder  # see `_decoder_of`
    cdef readonly object _source
    cdef public Py_ssize_t index
    cdef public object _row
    cdef public object _metadata
    cdef bint _is_tracked_later

    def __init__(self, tuple event not None, source, Py_ssize_t index):
        self._made = event
        self._source = source
        self.index = index

    @property
    def _event(self):
        return self._whole()

    cdef tuple _whole(self):
        """Return the event's own tuple, which needs nothing of the response's bytes."""
        if self._made is None:
            run, at = self._run, self._at()
            self._made = _row_event(
                at, run.scn, run.src_id, run.digest, _metadata_digest(at, None)
            )
            self._run = self._data = None
        return self._made

    cdef inline const uint8_t* _at(self):
        return <const uint8_t*>PyBytes_AS_STRING(self._data) + self._begin

    @property
    def source(self):
        """The source's name, e.g. `shop.orders`."""
        return self._source.name

    @property
    def src_id(self):
        """The source's id at the server that sent the event."""
        return self._source.src_id

    @property
    def scn(self):
        """The window's SCN."""
        return self._run.scn if self._made is None else self._made[SCN]

    @property
    def wire_key(self):
        """The key as it was sent: a number, or the columns as text; empty for a truncate."""
        return _i8(self._at() + LONG_KEY_AT) if self._made is None else self._made[KEY]

    @property
    def timestamp_ns(self):
        """The commit time, nanoseconds since the epoch."""
        if self._made is None:
            return _i8(self._at() + TIMESTAMP_NS_AT)
        return self._made[TIMESTAMP_NS]

    @property
    def is_delete(self):
        """Whether the row was deleted; `row` is then the old row. True for a truncate too."""
        if self._made is None:
            return (_u2(self._at() + ATTRIBUTES_AT) & OPCODE_MASK) == OPCODE_DELETE
        return self._made[OPCODE] == OPCODE_DELETE

    @property
    def row(self):
        """The row after the change (before it, for a delete), column → value.

        Columns that the source did not log are missing: see `absent`. Raises ProtocolError
        or IncompatibleSchemaError if the row cannot be decoded.
        """
        cdef tuple event = self._made
        cdef const uint8_t* at
        cdef Py_ssize_t place
        if self._row is None:
            if event is None:
                at = self._at()
                place = _place_of(at)
                if _is_plain(at, place):
                    self._row = _decoded(
                        self._decoder,
                        self._data,
                        self._begin + place + MD5_PART_BYTES,
                        self._begin + <Py_ssize_t>_u4(at + LENGTH_AT),
                    )
                else:
                    self._row = self._read_row()
            elif event[IS_PLAIN]:
                self._row = self._source.codecs[event[ROW_DIGEST]].decode_from(
                    event[WIRE], <Py_ssize_t>event[PLACE] + MD5_PART_BYTES
                )
            else:
                self._row = self._read_row()
            if not self._is_tracked_later:
                _track(self)
        return self._row


cdef object _decoder_of(source, digest):
    """Return the compiled decoder of a schema's rows, or the function that decodes them."""
    cdef object decode = source.codecs[digest].decode_from
    cdef object decoder = getattr(decode, "__self__", None)
    return decoder if type(decoder) is _RowDecoder else decode


cdef inline object _decoded(object decoder, bytes data, Py_ssize_t begin, Py_ssize_t end):
    if type(decoder) is _RowDecoder:
        return _decode_row(decoder, data, begin, end)
    return decoder(data, begin, end)


cdef inline void _track(EventFields one):
    if not PyObject_GC_IsTracked(<PyObject*>one):
        PyObject_GC_Track(<PyObject*>one)


cdef inline EventFields _new_event(type event_type, source, Py_ssize_t index, bint is_tracked_later):
    cdef EventFields one = (<PyTypeObject*>event_type).tp_new(
        event_type, <PyObject*>_NOTHING, NULL
    )
    one._source = source
    one.index = index
    one._is_tracked_later = is_tracked_later
    PyObject_GC_UnTrack(<PyObject*>one)
    return one


cdef class EventRun:
    """The events of one source that follow one another in a window; made when they are needed."""

    cdef type _event_type
    cdef list _runs  # of `PackedRun` and `RowEvent`
    cdef object _source
    cdef Py_ssize_t _first
    cdef Py_ssize_t _count
    cdef bint _is_batch

    def __len__(self):
        return self._count

    def __iter__(self):
        """Yield events of their own."""
        cdef EventFields one
        for event in self.one_by_one():
            one = event
            one._whole()
            one._is_tracked_later = False
            yield one

    def one_by_one(self):
        """Return an iterator whose events are whole only if somebody keeps them.

        The caller must refer to each once, by a variable, until it takes the next one.
        """
        cdef _OneByOne made = _OneByOne.__new__(_OneByOne)
        made._event_type, made._runs, made._source = self._event_type, self._runs, self._source
        made._index, made._is_batch = self._first, self._is_batch
        return made


cdef class _OneByOne:
    """The iterator of `EventRun.one_by_one`."""

    cdef type _event_type
    cdef list _runs
    cdef object _source
    cdef Py_ssize_t _index
    cdef bint _is_batch
    cdef Py_ssize_t _next  # of the runs
    cdef object _run
    cdef object _scn
    cdef bytes _data  # of a `PackedRun`
    cdef object _decoder
    cdef Py_ssize_t _begin  # of the next event
    cdef Py_ssize_t _left  # in the run
    cdef EventFields _last

    def __iter__(self):
        return self

    def __next__(self):
        cdef EventFields one = self._last
        # By `_last`, `one` and the caller.
        if one is not None and Py_REFCNT(one) > 3:
            _keep(one)
            one = self._last = None
        if self._left == 0 and not self._begin_run():
            raise StopIteration
        if one is None:
            one = self._last = _new_event(self._event_type, self._source, self._index, True)
        else:
            one._row = one._metadata = None
            one.index = self._index
        if self._data is None:
            one._made = <tuple>self._run
        else:
            one._made = None
            self._begin = _lay(one, self._run, self._data, self._begin, self._decoder)
        self._left -= 1
        self._index += 1
        return one

    cdef bint _begin_run(self) except -1:
        if self._next == len(self._runs):
            return False
        run = self._run = self._runs[self._next]
        self._next += 1
        if self._is_batch:
            scn = _scn_of(run)
            if self._scn is not None and scn != self._scn:
                self._index = 0
            self._scn = scn
        if type(run) is tuple:
            self._data, self._left = None, 1
        else:
            self._data, self._begin, self._left = run.data, run.begin, run.count
            self._decoder = _decoder_of(self._source, run.digest)
        return True

    def __dealloc__(self):
        # A callback has failed: its error may refer to the event.
        if self._last is not None and Py_REFCNT(self._last) > 1:
            _keep(self._last)


cdef inline Py_ssize_t _lay(
    EventFields one, object run, bytes data, Py_ssize_t begin, object decoder
):
    """Let an event be the one that begins there in a run; return where it ends."""
    one._run, one._data, one._begin, one._decoder = run, data, begin, decoder
    return begin + <Py_ssize_t>_u4(one._at() + LENGTH_AT)


cdef _keep(EventFields one):
    """Give an event that outlives its callback bytes of its own, and let the collector see it.

    It would otherwise keep those of a whole response.
    """
    one._whole()
    one._is_tracked_later = False
    if one._row is not None:
        _track(one)


def make_runs(
    type event_type not None,
    events not None,
    bindings,
    bint is_batch=False,
    bint are_tracked_later=False,
    bint are_one_by_one=False,
):
    """Return the events, numbered and grouped by runs of one source, each after its name.

    In a batch of windows each SCN is numbered from 0. With `are_tracked_later` call
    `track_kept` behind the callbacks; otherwise an event that outlives the window needs
    `LentEvents`. With `are_one_by_one` a run may be an `EventRun`.
    """
    if not issubclass(event_type, EventFields):
        raise TypeError(event_type)
    if type(events) is not PackedRows:
        return _made_runs(event_type, events, bindings, is_batch, are_tracked_later)
    if not are_one_by_one:
        return _made_runs(event_type, events.runs, bindings, is_batch, are_tracked_later)
    return _packed_runs(event_type, events.runs, bindings, is_batch)


cdef object _scn_of(run):
    return run[SCN] if type(run) is tuple else run.scn


cdef list _packed_runs(type event_type, tuple packed, bindings, bint is_batch):
    cdef list runs = []
    cdef EventRun made = None
    cdef object source = None, src_id = None, its_id, scn = None
    cdef Py_ssize_t index = 0, count
    for run in packed:
        its_id, count = (run[SRC_ID], 1) if type(run) is tuple else (run.src_id, run.count)
        if is_batch and _scn_of(run) != scn:
            scn = _scn_of(run)
            index = 0
        if made is None or its_id != src_id:
            src_id = its_id
            source = bindings[src_id]
            made = EventRun.__new__(EventRun)
            made._event_type, made._runs, made._source = event_type, [], source
            made._first, made._is_batch = index, is_batch
            runs.append((source.name, made))
        made._runs.append(run)
        made._count += count
        index += count
    return runs


cdef list _made_runs(
    type event_type, tuple packed, bindings, bint is_batch, bint are_tracked_later
):
    cdef list runs = [], made = None
    cdef EventFields one
    cdef object source = None, src_id = None, its_id, scn = None
    cdef Py_ssize_t index = 0
    for run in packed:
        its_id = run[SRC_ID] if type(run) is tuple else run.src_id
        if is_batch and _scn_of(run) != scn:
            scn = _scn_of(run)
            index = 0
        if made is None or its_id != src_id:
            src_id = its_id
            source = bindings[src_id]
            made = []
            runs.append((source.name, made))
        if type(run) is tuple:
            one = _new_event(event_type, source, index, are_tracked_later)
            one._made = <tuple>run
            index += 1
            made.append(one)
        else:
            index = _add_events(made, event_type, run, source, index, are_tracked_later)
    return runs


cdef Py_ssize_t _add_events(
    list made, type event_type, run, source, Py_ssize_t index, bint are_tracked_later
) except -1:
    """Append the events of a `PackedRun`, numbered from `index` on; return the next number."""
    cdef EventFields one
    cdef bytes data = run.data
    cdef object decoder = _decoder_of(source, run.digest)
    cdef Py_ssize_t begin = run.begin, end = run.end
    while begin < end:
        one = _new_event(event_type, source, index, are_tracked_later)
        begin = _lay(one, run, data, begin, decoder)
        index += 1
        made.append(one)
    return index


def make_rows(type event_type not None, events not None, bindings, src_id=None):
    """Return the row of each event, or of those of one source: `row` of each, without events."""
    cdef list rows = []
    if not issubclass(event_type, EventFields):
        raise TypeError(event_type)
    for run in events.runs if type(events) is PackedRows else events:
        its_id = run[SRC_ID] if type(run) is tuple else run.src_id
        if src_id is not None and its_id != src_id:
            continue
        source = bindings[its_id]
        if type(run) is tuple:
            rows.append(_row_of(event_type, run, source))
        else:
            _add_rows(rows, event_type, run, source)
    return rows


cdef object _row_of(type event_type, tuple event, source):
    return event_type(event, source, 0).row


cdef _add_rows(list rows, type event_type, run, source):
    """Append the rows of a `PackedRun`."""
    cdef bytes data = run.data
    cdef object decoder = _decoder_of(source, run.digest)
    cdef Py_ssize_t begin = run.begin, end = run.end, next_begin, place
    cdef const uint8_t* at
    while begin < end:
        at = <const uint8_t*>PyBytes_AS_STRING(data) + begin
        next_begin = begin + <Py_ssize_t>_u4(at + LENGTH_AT)
        place = _place_of(at)
        if _is_plain(at, place):
            rows.append(_decoded(decoder, data, begin + place + MD5_PART_BYTES, next_begin))
        else:
            event = _row_event(at, run.scn, run.src_id, run.digest, _metadata_digest(at, None))
            rows.append(_row_of(event_type, event, source))
        begin = next_begin


def track_kept(list runs not None):
    """Let go of the response, and let the garbage collector track the events that are kept.

    Those are referred to from elsewhere, too; an event in a cycle is one of them. All others end
    with `runs`.
    """
    cdef EventFields one
    for _, made in runs:
        if type(made) is EventRun:
            continue
        for event in <list>made:
            one = event
            one._is_tracked_later = False
            # By the list, `event` and `one`.
            if Py_REFCNT(one) > 3:
                _keep(one)


cdef class LentEvents:
    """The events of a window, which lie in a response until this ends; see `_keep`."""

    cdef readonly tuple events

    def __init__(self, tuple events not None):
        self.events = events

    def __dealloc__(self):
        cdef EventFields one
        cdef bint are_kept
        if self.events is None:  # of a cycle
            return
        are_kept = Py_REFCNT(self.events) > 1
        for event in self.events:
            one = event
            # By the tuple, `event` and `one`.
            if are_kept or Py_REFCNT(one) > 3:
                _keep(one)
