# cython: language_level=3, boundscheck=False, wraparound=False, freethreading_compatible=True
"""The fields of an event that most callbacks read. `event_fields` has the same in Python.

`make_runs` makes the events of a window without a call for each. The garbage collector does not
track an event until its row is read: only then can an application put the event into a cycle.
While callbacks run it tracks none, and then those that somebody has kept, by `track_kept`. Of a
page of thousands of rows it would otherwise look at every event several times.
"""

from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_REFCNT

from databus.schemas.event.layout import MD5_PART_BYTES

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(PyObject* thing)
    void PyObject_GC_Track(PyObject* thing)
    int PyObject_GC_IsTracked(PyObject* thing)

# Places in `row_reader.RowEvent`.
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

cdef Py_ssize_t _PART_BYTES = MD5_PART_BYTES
cdef tuple _NOTHING = ()
cdef enum:
    DELETE = 2


cdef class EventFields:
    """The fields of a row event, and its row, which is decoded at the first access."""

    cdef readonly tuple _event
    cdef readonly object _source
    cdef public Py_ssize_t index
    cdef public object _row
    cdef public object _metadata
    cdef bint _is_tracked_later

    def __init__(self, tuple event not None, source, Py_ssize_t index):
        self._event = event
        self._source = source
        self.index = index

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
        return self._event[SCN]

    @property
    def key(self):
        """The row's key: a number, or the key columns as text; empty for a truncate."""
        return self._event[KEY]

    @property
    def timestamp_ns(self):
        """The commit time, nanoseconds since the epoch."""
        return self._event[TIMESTAMP_NS]

    @property
    def is_delete(self):
        """Whether the row was deleted; `row` is then the old row. True for a truncate too."""
        return self._event[OPCODE] == DELETE

    @property
    def row(self):
        """The row after the change (before it, for a delete), column → value.

        Columns that the source did not log are missing: see `absent`. Raises ProtocolError
        or IncompatibleSchemaError if the row cannot be decoded.
        """
        cdef tuple event
        if self._row is None:
            event = self._event
            if event[IS_PLAIN]:
                self._row = self._source.codecs[event[ROW_DIGEST]].decode_from(
                    event[WIRE], <Py_ssize_t>event[PLACE] + _PART_BYTES
                )
            else:
                self._row = self._read_row()
            if not self._is_tracked_later:
                _track(self)
        return self._row


cdef inline void _track(EventFields one):
    if not PyObject_GC_IsTracked(<PyObject*>one):
        PyObject_GC_Track(<PyObject*>one)


def make_runs(
    type event_type not None,
    tuple events not None,
    bindings,
    bint is_batch=False,
    bint are_tracked_later=False,
):
    """Return the events, numbered and grouped by runs of one source, each after its name.

    In a batch of windows each SCN is numbered from 0. With `are_tracked_later` call
    `track_kept` behind the callbacks.
    """
    cdef list runs = [], made = None
    cdef EventFields one
    cdef tuple event
    cdef object source = None, src_id = None, scn = None
    cdef Py_ssize_t index = 0
    if not issubclass(event_type, EventFields):
        raise TypeError(event_type)
    for event in events:
        if is_batch and event[SCN] != scn:
            scn = event[SCN]
            index = 0
        if made is None or event[SRC_ID] != src_id:
            src_id = event[SRC_ID]
            source = bindings[src_id]
            made = []
            runs.append((source.name, made))
        one = (<PyTypeObject*>event_type).tp_new(event_type, <PyObject*>_NOTHING, NULL)
        one._event = event
        one._source = source
        one.index = index
        one._is_tracked_later = are_tracked_later
        index += 1
        PyObject_GC_UnTrack(<PyObject*>one)
        made.append(one)
    return runs


def track_kept(list runs not None):
    """Let the garbage collector track the events that are referred to from elsewhere, too.

    An event in a cycle is one of them. All others end with `runs`.
    """
    cdef EventFields one
    cdef list made
    for _, made in runs:
        for event in made:
            one = event
            one._is_tracked_later = False
            # By the list, `event` and `one`.
            if Py_REFCNT(one) > 3 and one._row is not None:
                _track(one)
