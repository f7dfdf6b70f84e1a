# What every resource can do, and the blocks that they hand out. A part of engine.pyx.


cdef object as_stats(const native.ResourceStats& stats):
    return PoolStats(
        current_bytes=stats.current,
        peak_bytes=stats.peak,
        requested_bytes=stats.requested,
        reserved_bytes=stats.reserved,
        peak_reserved_bytes=stats.peak_reserved,
        address_bytes=stats.addresses,
        largest_free_bytes=limit_or_none(stats.largest_free),
        allocation_count=stats.allocations,
        deallocation_count=stats.deallocations,
        metadata_bytes=stats.metadata,
        limit_bytes=limit_or_none(stats.limit),
        fragmentation=fragmentation(stats.free_bytes, stats.largest_free_chunk),
    )


cdef object TAG = current_tag  # faster to reach than a name of the module


# The name that an allocation is recorded under: its own, else that of the context.
cdef inline str as_tag(str tag):
    return tag if tag else <str>get_value(TAG)


ctypedef void* (*Once)(Resource, const native.Request&) noexcept

cdef extern from *:
    """
    static int raise_it(void) { return -1; }
    """
    int raise_it() except -1  # the exception that is set


# The environment's limits hold from the first resource on. The import stands inside
# because that module needs this one.
cdef int apply_environment() except -1:
    from memcfg._core._environment import host

    host.apply()
    return 0


# Not cleared by the garbage collector: C++ borrows the callback of the one below until
# this one is gone. A cycle through it is broken elsewhere, in a closure or a container.
@cython.no_gc_clear
cdef class Resource:
    """Something that hands out memory. Any thread may use it.

    Resources stack: a limit on a pool, statistics on a limit, a pool on a simulated
    device. The functions of `memcfg.memory` make them.

    Attributes
    ----------
    upstream : Resource or None
        Where the memory comes from; None is the system, or a simulated device.
    """

    cdef object __weakref__
    cdef shared_ptr[native.Resource] core
    cdef readonly Resource upstream  # kept alive: its callback is only borrowed

    def __cinit__(self):
        if not isinstance(self, FINAL_RESOURCES):  # it would have no C++ object
            raise TypeError("a Resource is made by a function of memcfg.memory")
        apply_environment()

    def __init__(self, *args, **kwargs):
        live_resources.add(self)  # only here is it whole

    def __dealloc__(self):
        with nogil:
            self.core.reset()

    # A try would cost as much as a block: the exception is looked at if there is none.
    cdef void* take(self, const native.Request& request) except NULL:
        cdef void* place = (<Once>take_once)(self, request)
        return place if place != NULL else take_again(self, request)

    @property
    def name(self):
        """The device's name, for messages."""
        return as_text(self.core.get().name())

    def allocate(
        self, nbytes, *, alignment=64, lifetime=None, str tag not None=""
    ):
        """Take a block of memory, contents undefined.

        Parameters
        ----------
        nbytes : int
            Bytes, at least 1.
        alignment : int, default 64
            Bytes, a power of two; less than 64 is 64.
        lifetime : {None, "short", "long"}, default None
            How long the block will be held, a hint: blocks of the two kinds are
            placed at opposite ends of a pool's free addresses.
        tag : str, default ""
            Who holds it, for statistics and messages; empty is the tag of the context,
            see `memcfg.memory.tag`.

        Returns
        -------
        Block
            The memory, which goes back when it is freed or garbage-collected.

        Raises
        ------
        ResourceExhaustedError
            If it does not fit the limit, or there is no memory; nothing is taken.
        TypeError
            If `nbytes` or `alignment` is no int, or `tag` no string.
        ValueError
            If `nbytes` is not positive, `alignment` is no power of two, `lifetime` is
            none of the three, or a pool has met more than 65,535 tags.
        MemoryError
            If there is no memory for its metadata; nothing is taken.
        """
        cdef native.Request request
        cdef Block block = Block.__new__(Block)
        block.resource = self
        block.tag = as_tag(tag)
        cdef string name = as_string(block.tag)
        request.size = block.size = as_size(nbytes, "a size")
        request.alignment = as_size(alignment, "an alignment")
        request.lifetime = as_lifetime(lifetime)
        request.tag = string_view(name.data(), name.size())
        block.data = self.take(request)
        return block

    def deallocate(self, address, nbytes):
        """Give the memory of a detached block back.

        Parameters
        ----------
        address : int
            What `Block.detach` returned.
        nbytes : int
            The bytes that were asked for.

        Raises
        ------
        InvalidFreeError
            If no block starts there (any more), one of another size does, or a
            resource on top has taken it; nothing has changed.
        TypeError, ValueError
            If `address` or `nbytes` is no int, or negative.
        """
        cdef void* data = <void*>as_size(address, "an address")
        cdef size_t size = as_size(nbytes, "a size")
        require_not_held(self, data)
        with nogil:
            self.core.get().deallocate(data, size)

    def stats(self):
        """Read the numbers.

        Returns
        -------
        PoolStats
            A pool's numbers are all of one moment. In those of an adaptor the numbers
            of blocks are its own, those of memory are upstream's.
        """
        cdef native.ResourceStats stats
        with nogil:
            stats = self.core.get().stats()
        return as_stats(stats)

    def reset_peak(self):
        """Make the bytes in use now the peak."""
        with nogil:
            self.core.get().reset_peak()

    def owners(self):
        """List the bytes in use by tag; tags of nothing are not listed.

        Returns
        -------
        dict of str to int
            Bytes, each block rounded up to 64. Blocks without a tag are under
            ``"unnamed"``.
        """
        cdef vector[pair[string, size_t]] rows
        with nogil:
            rows = self.core.get().owners()
        found = {}
        for row in rows:
            tag = as_text(row.first) or "unnamed"
            found[tag] = found.get(tag, 0) + row.second  # it may be a tag as well
        return found

    def trim(self, keep=0):
        """Give memory that no block holds back to the system.

        Parameters
        ----------
        keep : int, default 0
            Bytes of it to keep for the next requests.

        Returns
        -------
        int
            The bytes given back.

        Raises
        ------
        TypeError, ValueError
            If `keep` is no int, or negative.
        """
        cdef size_t kept = as_size(keep, "a size")
        with nogil:
            kept = self.core.get().trim(kept)
        return kept

    def check(self):
        """Check the invariants of the metadata.

        Raises
        ------
        AssertionError
            If one does not hold: a defect of memcfg, or of code that writes where it
            should not.
        """
        with nogil:
            self.core.get().check()

    def __repr__(self):
        return describe(type(self).__name__, self.name, self.stats())

    def _repr_html_(self):
        """Return the numbers and the owners as an HTML table."""
        return report_of_owners(repr(self)[1:-1], asdict(self.stats()), self.owners())


@cython.final
@cython.no_gc_clear  # its memory is given back by the resource, when it goes
@cython.freelist(64)
cdef class Block:
    """Memory of a resource. A context manager that frees, and a buffer.

    Made by `Resource.allocate`, which states the arguments and errors.

    Attributes
    ----------
    resource : Resource
        Where it was allocated.
    tag : str
        Who holds it, for statistics.
    """

    cdef object __weakref__
    cdef readonly Resource resource
    cdef readonly str tag
    cdef void* data  # null once freed or detached
    cdef size_t size  # as asked for
    cdef Py_ssize_t exports  # buffers that point into the block

    def __init__(self, *args, **kwargs):
        raise TypeError("a Block is made by Resource.allocate")

    def __dealloc__(self):
        if self.data == NULL:
            return
        with nogil:
            self.resource.core.get().deallocate(self.data, self.size)

    cdef void* alive(self) except NULL:
        if self.data == NULL:
            raise ValueError("the block has been freed or detached")
        return self.data

    cdef int require_unexported(self, str what) except -1:
        if self.exports > 0:
            raise BufferError(
                f"the block cannot be {what}: {self.exports} exported buffers still "
                "point into it"
            )
        return 0

    @property
    def address(self):
        """The address of the first byte; a multiple of 64."""
        return <uintptr_t>self.alive()

    @property
    def nbytes(self):
        """The block's size in bytes, a multiple of 64."""
        self.alive()
        return rounded(self.size)

    @property
    def requested(self):
        """The bytes that were asked for."""
        self.alive()
        return self.size

    def free(self):
        """Give the memory back.

        Raises
        ------
        BufferError
            If an exported buffer points into the block.
        ValueError
            If the block has been freed or detached.
        InvalidFreeError
            If its memory was freed elsewhere, by `Resource.deallocate`.
        """
        cdef void* data = self.alive()
        self.require_unexported("freed")
        self.data = NULL
        with nogil:
            self.resource.core.get().deallocate(data, self.size)

    def detach(self):
        """Leave the memory to the caller, who gives it to `Resource.deallocate`.

        Returns
        -------
        int
            The address.

        Raises
        ------
        BufferError
            If an exported buffer points into the block.
        ValueError
            If the block has been freed or detached.
        """
        cdef void* data = self.alive()
        self.require_unexported("detached")
        self.data = NULL
        return <uintptr_t>data

    def __enter__(self):
        self.alive()
        return self

    def __exit__(self, *exc_info):
        if self.data != NULL:
            self.free()

    def __repr__(self):
        state = "freed or detached" if self.data == NULL else f"at {self.address:#x}"
        tag = f" {self.tag!r}" if self.tag else ""
        return f"<Block{tag}: {self.size} bytes, {state}>"

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        cdef void* data = self.alive()
        require_memory(self.resource)
        PyBuffer_FillInfo(
            buffer, self, data, <Py_ssize_t>self.size, 0, flags
        )
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* buffer):
        self.exports -= 1


cdef void* take_once(Resource resource, const native.Request& request) except NULL:
    cdef void* place
    with nogil:
        place = resource.core.get().allocate(request)
    return place


# Pre: an exception is set. Others give memory back before a request is refused.
cdef void* take_again(Resource resource, const native.Request& request) except NULL:
    try:
        raise_it()
    except ResourceExhaustedError as error:
        if not make_room(resource, error):
            raise
    while True:
        try:
            return take_once(resource, request)
        except ResourceExhaustedError as error:
            if not make_room(resource, error):
                raise


cdef bint stands_on(Resource resource, Resource below) noexcept:
    if isinstance(resource, WorkspaceMemory):
        pages = (<WorkspaceMemory>resource).pages
        if pages is below or stands_on(pages, below):
            return True
    upstream = resource.upstream
    return upstream is not None and (upstream is below or stands_on(upstream, below))


# A block goes back where it was taken: below, that would leave the resource on top with
# memory that is not its own any more.
cdef int require_not_held(Resource resource, void* data) except -1:
    cdef Resource each
    for each in reversed(live_resources.alive()):
        if stands_on(each, resource) and each.core.get().holds(data):
            raise InvalidFreeError(
                f"the block there was taken by a {type(each).__name__} on top of this "
                f"{type(resource).__name__}; it goes back there"
            )
    return 0


cdef inline size_t rounded(size_t size) noexcept:
    return (size + 63) // 64 * 64


cdef int require_memory(Resource resource) except -1:
    if not resource.core.get().touchable():
        raise BufferError(
            "a buffer needs memory of the host: a GPU's is out of its reach, and a "
            "simulated device has addresses, but no memory behind them"
        )
    return 0


@cython.final
@cython.no_gc_clear
cdef class SystemResource(Resource):
    """Blocks straight from the C library: `memcfg.memory.system`."""

    def __cinit__(self, *, str name not None=""):
        self.core.reset(new native.SystemResource(as_string(name)))


@cython.final
@cython.no_gc_clear
cdef class SimulatedResource(Resource):
    """A device of addresses only: `memcfg.memory.simulated` states the arguments."""

    def __cinit__(self, nbytes, *, str name not None=""):
        cdef size_t size = as_size(as_bytes(nbytes, "a size"), "a size")
        self.core.reset(new native.SimulatedResource(as_string(name), size))
