# The one place where a C++ exception becomes a Python one.

from cpython.exc cimport PyErr_Occurred
from libc.stddef cimport size_t
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.vector cimport vector

cdef extern from "memcfg/error.hpp" namespace "memcfg" nogil:
    const size_t kNoLimit

    enum Cause "memcfg::Shortage::Cause":
        limit_reached "memcfg::Shortage::limit_reached"
        limit_lowered "memcfg::Shortage::limit_lowered"
        no_memory "memcfg::Shortage::no_memory"
        no_addresses "memcfg::Shortage::no_addresses"

    cdef cppclass Shortage:
        Cause cause
        size_t requested
        size_t in_use
        size_t limit
        size_t largest_free
        string device
        vector[pair[string, size_t]] owners

    enum FailureKind "memcfg::Failure::Kind":
        memory "memcfg::Failure::memory"
        heap "memcfg::Failure::heap"
        kernel "memcfg::Failure::kernel"
        held "memcfg::Failure::held"
        invariant "memcfg::Failure::invariant"
        callback "memcfg::Failure::callback"
        argument "memcfg::Failure::argument"

    cdef cppclass Failure:
        FailureKind kind
        string text
        Shortage shortage

    Failure current_failure() except +


cdef inline object words(const string& text):
    return text.decode("utf-8", "replace")


cdef inline object bytes_or_none(size_t nbytes):
    return None if nbytes == kNoLimit else nbytes


cdef inline str next_step(Cause cause):
    if cause == Cause.limit_lowered:
        return "Free memory first, or choose a higher limit."
    if cause == Cause.no_memory:
        return "Close other programs or lower the batch size."
    if cause == Cause.no_addresses:
        return "Reserve fewer addresses, or raise the process' limit (ulimit -v)."
    return (
        "Raise the limit with memcfg.config.set_memory_limit or lower the batch size."
    )


cdef inline object exhausted(Failure& failure):
    from memcfg.errors import ResourceExhaustedError

    return ResourceExhaustedError(
        words(failure.text),
        requested_bytes=failure.shortage.requested,
        in_use_bytes=failure.shortage.in_use,
        limit_bytes=bytes_or_none(failure.shortage.limit),
        largest_free_bytes=bytes_or_none(failure.shortage.largest_free),
        device=words(failure.shortage.device),
        owners={
            words(row.first) or "unnamed": row.second
            for row in failure.shortage.owners
        },
        hint=next_step(failure.shortage.cause),
    )


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
    if failure.kind == FailureKind.argument:
        raise ValueError(words(failure.text))
    raise RuntimeError(words(failure.text))
