# How other compiled modules call `_row_decoder`, without a call of Python's. For the modules, which
# include this text; the function is in the capsule `DECODE_ROW`.

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New

# As `RowDecoder.decode`; the first argument must be one.
ctypedef object (*DecodeRow)(object decoder, bytes data, Py_ssize_t begin, Py_ssize_t end)
