# The loop that plays a record of allocations into a resource. A part of engine.pyx.

cdef enum:
    STEPS = 65536  # between two looks at signals


cdef const void* column(bytes values, size_t count, size_t width) except NULL:
    if <size_t>len(values) != count * width:
        raise ValueError("the columns are of different lengths")
    return PyBytes_AS_STRING(values)


@cython.final
cdef class ReplayPlan:
    """What is to be played; ValueError names the row that cannot be.

    The columns are those of `TrackingResource.history`, of as many rows as there are
    bytes in the first.
    """

    cdef shared_ptr[const native.ReplayPlan] core

    def __cinit__(
        self,
        bytes action not None,
        bytes address not None,
        bytes nbytes not None,
        bytes tag not None,
        tags,
    ):
        cdef native.ReplayColumns columns
        cdef vector[string] names
        for name in tags:
            names.push_back(as_string(name))
        columns.count = len(action)
        columns.action = <const uint8_t*>column(action, columns.count, 1)
        columns.address = <const uint64_t*>column(address, columns.count, 8)
        columns.size = <const uint64_t*>column(nbytes, columns.count, 8)
        columns.tag = <const int32_t*>column(tag, columns.count, 4)
        self.core.reset(new native.ReplayPlan(columns, names))

    def play(self, Resource resource not None, touch):
        """Play it once: the figures, and the nanoseconds of each step as bytes of uint64.

        What was taken goes back, whatever happens. Signals are heeded. ValueError when
        there is no memory to touch; else what the resource raises, but for refusals.
        """
        cdef native.bool touches = as_flag(touch, "touch")
        cdef native.bool more = True
        cdef unique_ptr[native.Replay] replay
        replay.reset(new native.Replay(self.core, resource.core, touches))
        while more:
            with nogil:
                more = replay.get().advance(STEPS)
            PyErr_CheckSignals()
        with nogil:
            replay.get().finish()
        return as_figures(replay.get().figures()), as_column(
            replay.get().nanoseconds().data(), 8 * replay.get().nanoseconds().size()
        )


cdef dict as_figures(const native.ReplayFigures& figures):
    failed = figures.failures > 0
    return {
        "failures": figures.failures,
        "first_failure": figures.first_failure.value() if failed else None,
        "utilisation": (
            figures.use_at_failure.value() if figures.use_at_failure.has_value() else None
        ),
        "skipped": figures.skipped,
        "left": figures.left,
        "left_bytes": figures.left_size,
        "peak_in_use_bytes": figures.peak_in_use,
        "peak_requested_bytes": figures.peak_requested,
        "peak_reserved_bytes": figures.peak_reserved,
    }
