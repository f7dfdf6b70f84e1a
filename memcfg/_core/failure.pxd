# The one place where a C++ exception becomes a Python one.

from cpython.exc cimport PyErr_Occurred
from libc.stddef cimport size_t
from libcpp.optional cimport optional
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

cdef extern from "memcfg/error.hpp" namespace "memcfg" nogil:
    const size_t kNoLimit

    cdef cppclass OutOfMemoryInfo:
        size_t requested
        size_t rounded
        size_t in_use
        size_t reserved
        size_t free_bytes
        size_t largest_free_chunk
        size_t limit
        size_t largest_free
        string device
        vector[pair[string, size_t]] owners
        const char* next()

    cdef cppclass Failure:
        const char* name
        string text
        optional[OutOfMemoryInfo] info
        int number
        string path

    Failure current_failure() except +


cdef inline object words(const string& text):
    return text.decode("utf-8", "replace")


cdef inline object bytes_or_none(size_t nbytes):
    return None if nbytes == kNoLimit else nbytes


cdef inline double fragmentation(size_t free_bytes, size_t largest):
    return 1 - <double>largest / free_bytes if largest < free_bytes else 0.0


cdef inline dict numbers_of(OutOfMemoryInfo& info):
    return {
        "requested_bytes": info.requested,
        "rounded_bytes": info.rounded,
        "in_use_bytes": info.in_use,
        "reserved_bytes": info.reserved,
        "limit_bytes": bytes_or_none(info.limit),
        "largest_free_bytes": bytes_or_none(info.largest_free),
        "fragmentation": fragmentation(info.free_bytes, info.largest_free_chunk),
        "device": words(info.device),
        "owners": {words(row.first) or "unnamed": row.second for row in info.owners},
        "hint": info.next().decode(),
    }


# A handler for `except +`: called with the GIL while the C++ exception is handled.
# A failed callback has left its Python exception set; that one is kept. The imports
# stand inside because a .pxd has no module of its own to import into.
cdef inline int raise_failure() except -1:
    if PyErr_Occurred():
        return -1
    cdef Failure failure = current_failure()
    text = words(failure.text)
    try:
        import builtins
        from os import fsdecode

        from memcfg import errors
    except ImportError:  # the interpreter ends
        raise MemoryError(text)
    name = failure.name.decode()
    if failure.info.has_value():
        raise getattr(errors, name)(text, **numbers_of(failure.info.value()))
    if failure.number != 0:  # Python makes it a FileNotFoundError, ... by its number
        raise OSError(failure.number, text, fsdecode(failure.path))
    raise (getattr(errors, name, None) or getattr(builtins, name))(text)
