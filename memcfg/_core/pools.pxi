# The pool and its arenas. A part of engine.pyx.


@cython.final
@cython.no_gc_clear
cdef class Pool(Resource):
    """The memory of one device, under a hard limit.

    Every request is checked against the limit before memory is taken, and a refused
    one leaves everything as it was. The limit is on bytes in use, each request
    rounded up to 64; memory taken exceeds it by a page at most.

    Parameters
    ----------
    upstream : Resource or None, default None
        Where the pool takes its memory from: page by page from a simulated device,
        in whole blocks from any other resource; None is the system's pages.
    limit : int, str or None, default None
        Bytes, or a string with a unit such as ``"64MiB"``; None is no limit.
    growth : bool, default True
        Whether memory is taken as it is needed; False takes the whole limit at once.
    retry_seconds : float, default 0
        How long a block that does not fit waits for other threads to free memory
        before it is refused, in seconds.
    name : str, default ""
        The device's name, for messages; empty is upstream's.

    Attributes
    ----------
    holders : Holders
        Who can do without memory of this pool; they are asked, in their order, before
        a request or a lower limit is refused.

    Raises
    ------
    ResourceExhaustedError
        If the whole limit is to be taken, and there is no memory for it.
    TypeError
        If an argument is of another type.
    ValueError
        If the limit is not positive, no size, or larger than any address space; if
        there is none and `growth` is False; if the wait is negative or without end; or
        if upstream calls Python: a failure callback, or tracking with stacks.
    """

    cdef native.Pool* pool
    cdef double timeout
    cdef readonly object holders

    def __cinit__(
        self,
        Resource upstream=None,
        *,
        limit=None,
        growth=True,
        double retry_seconds=0,
        str name not None="",
    ):
        if not 0 <= retry_seconds < INFINITY:
            raise ValueError(f"retry_seconds is a wait, not {retry_seconds!r}")
        self.timeout = retry_seconds
        self.holders = Holders()
        cdef size_t nbytes = as_limit(limit)
        cdef native.bool grows = as_flag(growth, "growth")
        cdef shared_ptr[native.Resource] below
        if upstream is not None:
            require_no_callback(upstream)
            below = upstream.core
            name = name or upstream.name
        cdef string text = as_string(name)
        self.upstream = upstream
        with nogil:
            self.pool = new native.Pool(text, nbytes, grows, below)
            self.core.reset(<native.Resource*>self.pool)

    @property
    def limit(self):
        """The limit in bytes; None when there is none."""
        return limit_or_none(self.pool.limit())

    @property
    def growth(self):
        """Whether memory is taken as it is needed."""
        return self.pool.growth()

    @property
    def retry_seconds(self):
        """How long a block that does not fit waits, in seconds."""
        return self.timeout

    # Another thread may free what is missing. The wait heeds signals.
    cdef void* take(self, const native.Request& request) except NULL:
        if self.timeout == 0:
            return Resource.take(self, request)
        deadline = monotonic() + self.timeout
        while True:
            try:
                return Resource.take(self, request)
            except ResourceExhaustedError:
                if monotonic() >= deadline:
                    raise
            sleep(0.001)

    def decay(self):
        """Give back the free memory that nothing has used since the last call.

        Called now and then, such as once an epoch, it returns what a program no longer
        needs and leaves what it uses again and again. What the caches of threads keep,
        256 KiB each at most, stays.

        Returns
        -------
        int
            The bytes given back.
        """
        cdef size_t nbytes
        with nogil:
            nbytes = self.pool.decay()
        return nbytes

    def set_limit(self, limit):
        """Change the limit; gives the one before.

        Parameters
        ----------
        limit : int, str or None
            As for the constructor.

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
        cdef size_t before
        while True:
            try:
                with nogil:
                    before = self.pool.set_limit(nbytes)
                return limit_or_none(before)
            except ResourceExhaustedError as error:
                short = error.in_use_bytes - <object>nbytes
                if not self.holders.give_back(max(short, 4096)):
                    raise

    def arena(self, reserve_bytes=None, *, str tag not None=""):
        """Reserve addresses that can be filled with memory from the front.

        Of a resource that has blocks only, an arena is one block: its first growth takes
        it, of `reserve_bytes`, or of its own size, and no growth goes beyond.

        Parameters
        ----------
        reserve_bytes : int or None, default None
            How far the arena can ever grow, in bytes. Addresses cost no memory. None:
            the larger of the limit and the machine's memory, or as much of it as the
            system grants.
        tag : str, default ""
            Who holds it, for messages; empty is the tag of the context.

        Returns
        -------
        Arena
            An arena of no bytes.

        Raises
        ------
        ResourceExhaustedError
            If the system refuses the addresses.
        TypeError, ValueError
            If `reserve_bytes` is no int, or not positive.
        """
        return Arena(self, reserve_bytes, tag=tag)

    def occupancy(self, width=100, *, bint addresses=False):
        """Draw how full the pool is.

        Parameters
        ----------
        width : int, default 100
            Letters, at least 1. Each stands for an equal share of the limit, or of what
            the pool has taken where it has none, and shows what its share begins with.
        addresses : bool, default False
            Whether to draw what lies where in the pool's addresses instead. Each letter
            stands for an equal share of those and shows what most of its memory is.
            Arenas have addresses of their own and are not shown.

        Returns
        -------
        str
            ``*`` is in use, ``x`` kept in a thread's cache for the next request of its
            size, ``.`` free with memory behind it, ``_`` free and without memory. Empty
            while there is nothing to draw.

        Raises
        ------
        TypeError, ValueError
            If `width` is no int, or not positive.
        """
        cdef size_t letters = as_size(width, "a width")
        cdef vector[native.HeapExtent] extents
        if letters == 0:
            raise ValueError("a width is at least 1")
        with nogil:
            extents = self.pool.layout(False)
        if addresses:
            return occupancy_bar(
                [(STATES[each.state], each.size, each.committed) for each in extents],
                letters,
            )
        stats = self.stats()
        in_use = stats.current_bytes
        kept = sum(s.size for s in extents if s.state == native.ExtentState.cached)
        free = max(stats.reserved_bytes - in_use - kept, 0)
        bound = stats.reserved_bytes if stats.limit_bytes is None else stats.limit_bytes
        # Caches and pages may exceed a limit, which is on bytes in use.
        kept = min(kept, max(bound - in_use, 0))
        free = min(free, max(bound - in_use - kept, 0))
        return fill_bar(in_use, kept, free, max(bound - in_use - kept - free, 0), letters)


cdef dict STATES = {
    native.ExtentState.free_extent: "free",
    native.ExtentState.cached: "cached",
    native.ExtentState.block: "block",
}


# A pool asks below with its lock held: a callback there that used the pool, or waited
# for a thread that does, would wait for ever.
cdef int require_no_callback(Resource resource) except -1:
    while resource is not None:
        if isinstance(resource, WorkspaceMemory):
            require_no_callback((<WorkspaceMemory>resource).pages)
        if isinstance(resource, FailureCallbackResource):
            raise ValueError("a failure callback goes on top of a pool, not below it")
        if isinstance(resource, TrackingResource) and resource.stacks:
            raise ValueError("tracking with stacks goes on top of a pool, not below it")
        resource = resource.upstream
    return 0


@cython.final
@cython.no_gc_clear  # C++ borrows what is below its pool until it is gone
cdef class Arena:
    """Addresses whose front is memory; `Pool.arena` states the arguments and errors.

    The base never moves, so views taken before a growth stay valid; the pages behind the
    last byte cannot be touched. Where memory comes in blocks there is no base before the
    first growth, and a block goes back as a whole.

    Attributes
    ----------
    pool : Pool
        Who pays for the memory.
    tag : str
        Who holds it.
    """

    cdef object __weakref__
    cdef shared_ptr[native.Arena] core
    cdef readonly Pool pool
    cdef readonly str tag

    def __cinit__(self, Pool pool not None, reserve_bytes=None, *, str tag not None=""):
        cdef size_t capacity = 0
        if reserve_bytes is not None:
            capacity = as_size(reserve_bytes, "a size")
            if capacity == 0:
                raise ValueError("an arena of no addresses cannot grow")
        self.pool = pool
        self.tag = as_tag(tag)
        cdef string name = as_string(self.tag)
        with nogil:
            self.core.reset(
                new native.Arena(
                    static_pointer_cast[native.Pool, native.Resource](pool.core),
                    capacity,
                    name,
                )
            )
        live_arenas.add(self)

    def __dealloc__(self):
        with nogil:
            self.core.reset()

    cdef int require_alive(self) except -1:
        if self.core.get().freed():
            raise ValueError("the arena has been freed")
        return 0

    @property
    def freed(self):
        """Whether memory and addresses have been given back."""
        return self.core.get().freed()

    @property
    def address(self):
        """The address of the first byte; a multiple of 64, and it never changes.

        0 before the first growth where memory comes in blocks.
        """
        self.require_alive()
        return <uintptr_t>self.core.get().base()

    @property
    def nbytes(self):
        """The arena's size in bytes, a multiple of 64."""
        self.require_alive()
        return self.core.get().size()

    @property
    def reserved_addresses(self):
        """How many bytes the arena can ever have; 0 while that is open."""
        self.require_alive()
        return self.core.get().capacity()

    def grow(self, nbytes):
        """Make the arena at least so large, in place; new bytes are zero.

        Parameters
        ----------
        nbytes : int
            Bytes; fewer than it has change nothing.

        Raises
        ------
        ResourceExhaustedError
            If the difference does not fit the limit or the reserved addresses, or the
            system refuses; the arena is unchanged.
        TypeError, ValueError
            If `nbytes` is no int, is negative, or the arena has been freed.
        """
        cdef size_t size = as_size(nbytes, "a size")
        while True:
            try:
                with nogil:
                    self.core.get().grow(size)
                return
            except ResourceExhaustedError as error:
                if not make_room(self.pool, error):
                    raise

    def shrink(self, nbytes):
        """Make the arena at most so large, rounded up to 64, in place.

        Parameters
        ----------
        nbytes : int
            Bytes; more than it has change nothing.

        Raises
        ------
        BufferError
            If a program or an exported buffer points into the arena.
        TypeError, ValueError
            As for `grow`.
        """
        cdef size_t size = as_size(nbytes, "a size")
        with nogil:
            self.core.get().shrink(size)

    def free(self):
        """Give memory and addresses back.

        Raises
        ------
        BufferError
            If a program or an exported buffer points into the arena.
        ValueError
            If the arena has been freed.
        """
        with nogil:
            self.core.get().free()

    def check(self):
        """Check the arena's invariants.

        Raises
        ------
        AssertionError
            If one does not hold: a defect of memcfg.
        """
        self.core.get().check()

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        require_memory(self.pool)
        cdef native.Pin* pin = new native.Pin(self.core)
        cdef native.Arena* arena = self.core.get()
        try:
            PyBuffer_FillInfo(
                buffer, self, arena.base(), <Py_ssize_t>arena.size(), 0, flags
            )
        except:  # noqa: E722  (whatever it was: the pin must go)
            del pin
            raise
        buffer.internal = pin

    def __releasebuffer__(self, Py_buffer* buffer):
        cdef native.Pin* pin = <native.Pin*>buffer.internal
        del pin


def layout_of(Pool pool not None):
    """List what lies where in a pool's addresses, all of one moment.

    A row is the state (``"block"``, ``"cached"``, ``"free"``), the address, the bytes, how
    many of them have memory, the bytes asked for and the tag. A free row has memory
    throughout or nowhere. Rows are sorted by address; arenas are not among them.
    """
    cdef vector[native.HeapExtent] rows
    with nogil:
        rows = pool.pool.layout(True)
    return [
        (
            STATES[row.state],
            row.address,
            row.size,
            row.committed,
            row.requested,
            as_text(row.tag),
        )
        for row in rows
    ]


def blocks_of(Resource resource not None):
    """List the blocks that are out, all of one moment, sorted by address.

    A row is the address, the bytes asked for, the same rounded up to 64, and the tag.
    """
    cdef vector[native.LiveBlock] rows
    with nogil:
        rows = resource.core.get().blocks()
    return [(row.address, row.requested, row.size, as_text(row.tag)) for row in rows]


def arena_of(Arena arena not None):
    """List an arena as a row of `blocks_of`: all its bytes, 0 once it is freed."""
    cdef size_t size = arena.core.get().requested()
    return <uintptr_t>arena.core.get().base(), size, rounded(size), arena.tag
