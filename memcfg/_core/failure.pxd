# The one place where a C++ exception becomes a Python one.

from cpython.exc cimport PyErr_Occurred
from libc.stddef cimport size_t
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

cdef extern from "memcfg/error.hpp" namespace "memcfg" nogil:
    const size_t kNoLimit

    enum Cause "memcfg::OutOfMemoryInfo::Cause":
        workspace_full "memcfg::OutOfMemoryInfo::workspace_full"

    cdef cppclass OutOfMemoryInfo:
        Cause cause
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

    enum FailureKind "memcfg::Failure::Kind":
        memory "memcfg::Failure::memory"
        heap "memcfg::Failure::heap"
        kernel "memcfg::Failure::kernel"
        held "memcfg::Failure::held"
        invariant "memcfg::Failure::invariant"
        callback "memcfg::Failure::callback"
        freeing "memcfg::Failure::freeing"
        argument "memcfg::Failure::argument"
        file "memcfg::Failure::file"

    cdef cppclass Failure:
        FailureKind kind
        string text
        OutOfMemoryInfo info
        int number
        string path

    Failure current_failure() except +


cdef inline object words(const string& text):
    return text.decode("utf-8", "replace")


cdef inline object bytes_or_none(size_t nbytes):
    return None if nbytes == kNoLimit else nbytes


cdef inline double fragmentation(size_t free_bytes, size_t largest):
    return 1 - <double>largest / free_bytes if largest < free_bytes else 0.0


cdef inline object exhausted(Failure& failure):
    cdef OutOfMemoryInfo info = failure.info
    try:
        from memcfg.errors import ResourceExhaustedError, WorkspaceFullError
    except ImportError:  # the interpreter ends
        return MemoryError(words(failure.text))

    full = info.cause == Cause.workspace_full
    return (WorkspaceFullError if full else ResourceExhaustedError)(
        words(failure.text),
        requested_bytes=info.requested,
        rounded_bytes=info.rounded,
        in_use_bytes=info.in_use,
        reserved_bytes=info.reserved,
        limit_bytes=bytes_or_none(info.limit),
        largest_free_bytes=bytes_or_none(info.largest_free),
        fragmentation=fragmentation(info.free_bytes, info.largest_free_chunk),
        device=words(info.device),
        owners={words(row.first) or "unnamed": row.second for row in info.owners},
        hint=info.next().decode(),
    )


# Python makes it a PermissionError, a FileNotFoundError, ... by its number.
cdef inline object file_error(Failure& failure):
    from os import fsdecode

    return OSError(failure.number, words(failure.text), fsdecode(failure.path))


# A handler for `except +`: called with the GIL while the C++ exception is handled.
# A failed callback has left its Python exception set; that one is kept. The import
# stands inside because a .pxd has no module of its own to import into.
cdef inline int raise_failure() except -1:
    if PyErr_Occurred():
        return -1
    cdef Failure failure = current_failure()
    if failure.kind == FailureKind.memory:
        raise exhausted(failure)
    if failure.kind == FailureKind.heap:
        raise MemoryError(words(failure.text))
    if failure.kind == FailureKind.kernel:
        from memcfg.errors import KernelError

        raise KernelError(words(failure.text))
    if failure.kind == FailureKind.held:
        raise BufferError(words(failure.text))
    if failure.kind == FailureKind.invariant:
        raise AssertionError(words(failure.text))
    if failure.kind == FailureKind.freeing:
        from memcfg.errors import InvalidFreeError

        raise InvalidFreeError(words(failure.text))
    if failure.kind == FailureKind.file:
        raise file_error(failure)
    if failure.kind == FailureKind.argument:
        raise ValueError(words(failure.text))
    raise RuntimeError(words(failure.text))
