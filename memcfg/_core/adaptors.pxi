# Resources with no pool of their own. A part of engine.pyx.


@cython.final
@cython.no_gc_clear
cdef class SystemResource(Resource):
    """Blocks straight from the C library. Made by `memcfg.memory.system`.

    Parameters
    ----------
    name : str, default ""
        The device's name, for messages.
    """

    def __cinit__(self, *, str name not None=""):
        self.core.reset(new native.SystemResource(as_string(name)))


@cython.final
@cython.no_gc_clear
cdef class SimulatedResource(Resource):
    """A device of addresses only. Made by `memcfg.memory.simulated`.

    Parameters
    ----------
    nbytes : int or str
        The device's memory in bytes, or a string with a unit.
    name : str, default ""
        The device's name, for messages.

    Raises
    ------
    TypeError, ValueError
        If `nbytes` is no size, or not positive.
    """

    def __cinit__(self, nbytes, *, str name not None=""):
        cdef size_t size = as_size(as_bytes(nbytes, "a size"), "a size")
        self.core.reset(new native.SimulatedResource(as_string(name), size))


@cython.final
@cython.no_gc_clear
cdef class LimitingResource(Resource):
    """A ceiling on what goes through. Made by `memcfg.memory.limiting`.

    Parameters
    ----------
    upstream : Resource
        Where the blocks come from.
    limit : int, str or None
        Bytes, or a string with a unit; None is no limit.

    Raises
    ------
    TypeError, ValueError
        If `upstream` is no resource, or `limit` is no size or not positive.
    """

    def __cinit__(self, Resource upstream not None, limit):
        self.upstream = upstream
        self.limiting = new native.LimitingResource(upstream.core, as_limit(limit))
        self.core.reset(<native.Resource*>self.limiting)

    @property
    def limit(self):
        """The limit in bytes; None when there is none."""
        return limit_or_none(self.limiting.limit())

    def set_limit(self, limit):
        """Change the limit; gives the one before.

        Parameters
        ----------
        limit : int, str or None
            Bytes, or a string with a unit; None is no limit.

        Returns
        -------
        int or None
            The limit before, in bytes.

        Raises
        ------
        ResourceExhaustedError
            If more than that is in use; the limit is unchanged.
        TypeError, ValueError
            If `limit` is no size, or not positive.
        """
        cdef size_t nbytes = as_limit(limit)
        with nogil:
            nbytes = self.limiting.set_limit(nbytes)
        return limit_or_none(nbytes)


cdef object as_region(const native.Counters& counters):
    return RegionStats(
        current_bytes=counters.bytes.current,
        peak_bytes=counters.bytes.peak,
        total_bytes=counters.bytes.total,
        current_count=counters.blocks.current,
        peak_count=counters.blocks.peak,
        total_count=counters.blocks.total,
    )


@cython.final
@cython.no_gc_clear
cdef class StatisticsResource(Resource):
    """Counts what goes through. Made by `memcfg.memory.statistics`.

    Parameters
    ----------
    upstream : Resource
        Where the blocks come from.

    Raises
    ------
    TypeError
        If `upstream` is no resource.
    """

    def __cinit__(self, Resource upstream not None):
        self.upstream = upstream
        self.statistics = new native.StatisticsResource(upstream.core)
        self.core.reset(<native.Resource*>self.statistics)

    def push(self):
        """Open a region: it counts what every thread does until it is popped."""
        with nogil:
            self.statistics.push()

    def pop(self):
        """End the region opened last; the one around it takes its numbers in.

        Returns
        -------
        RegionStats
            What went through while it was open.

        Raises
        ------
        ValueError
            If no region is open.
        """
        cdef native.Counters counters
        with nogil:
            counters = self.statistics.pop()
        return as_region(counters)

    def by_tag(self):
        """List what went through under each tag, those included that hold nothing.

        Returns
        -------
        dict of str to RegionStats
            The numbers since the resource was made, by tag.
        """
        cdef vector[pair[string, native.Counters]] rows
        with nogil:
            rows = self.statistics.by_tag()
        return {as_text(row.first): as_region(row.second) for row in rows}


cdef int ask(void* context, size_t nbytes) except -1 with gil:
    return 1 if (<FailureCallbackResource>context).callback(nbytes) else 0


@cython.final
@cython.no_gc_clear
cdef class FailureCallbackResource(Resource):
    """Asks a function before a request fails.

    Made by `memcfg.memory.failure_callback`, which states when it is called.

    Parameters
    ----------
    upstream : Resource
        Where the blocks come from.
    callback : callable
        Called with the bytes asked for; true is to try again.

    Attributes
    ----------
    callback : callable
        The function.

    Raises
    ------
    TypeError
        If `upstream` is no resource, or `callback` not callable.
    """

    def __cinit__(self, Resource upstream not None, callback):
        if not callable(callback):
            raise TypeError(f"not callable: {callback!r}")
        self.upstream = upstream
        self.callback = callback
        self.core.reset(
            new native.FailureCallbackResource(
                upstream.core, native.foreign_callback(ask, <void*>self)
            )
        )


cdef tuple FINAL_RESOURCES = (
    Pool,
    MappedFile,
    SystemResource,
    SimulatedResource,
    LimitingResource,
    StatisticsResource,
    TrackingResource,
    LoggingResource,
    FailureCallbackResource,
    WorkspaceMemory,
)
