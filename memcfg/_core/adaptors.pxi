# Resources on top of another one. A part of engine.pyx.


@cython.final
@cython.no_gc_clear
cdef class LimitingResource(Resource):
    """A ceiling on what goes through; `memcfg.memory.limiting` states the arguments."""

    cdef native.LimitingResource* limiting

    def __cinit__(self, Resource upstream not None, limit):
        self.upstream = upstream
        self.limiting = new native.LimitingResource(upstream.core, as_limit(limit))
        self.core.reset(<native.Resource*>self.limiting)

    @property
    def limit(self):
        """The limit in bytes; None when there is none."""
        return limit_or_none(self.limiting.limit())

    def set_limit(self, limit):
        """Change the limit; gives the one before. Errors are those of `Pool.set_limit`.

        Parameters
        ----------
        limit : int, str or None
            Bytes, or a string with a unit; None is no limit.
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
    """Counts what goes through; `memcfg.memory.statistics` states the argument."""

    cdef native.StatisticsResource* statistics

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

    `memcfg.memory.failure_callback` states when it is called.

    Attributes
    ----------
    callback : callable
        The function.
    """

    cdef readonly object callback

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


cdef extern from "Python.h":
    int Py_AddPendingCall(int (*function)(void*) except -1, void* argument) nogil

cdef enum:
    MAX_FRAMES = 100  # of a stack, the innermost


# Called by C++ with no lock held, before the memory is asked for.
cdef int note_stack(void* context, native.HeldStack* stack) except -1 with gil:
    cdef native.Frame[MAX_FRAMES] frames
    cdef size_t count = read_frames(frames, MAX_FRAMES)
    if count == 0:
        return 0
    cdef native.TrackingResource* tracking = (<TrackingResource>context).tracking
    cdef native.TakenStack taken = tracking.take_stack(frames, count)
    cdef size_t i
    stack[0] = taken.stack
    if taken.fresh:
        for i in range(count):
            keep_code(frames[i].code)
    native.each_code(taken.retired, let_code_go)
    return 0


# Stacks in words; their code is kept meanwhile. Pre: the GIL is held
# since the stacks were read.
cdef list in_words(const vector[vector[native.Frame]]& stacks):
    cdef size_t i
    native.each_code(stacks, keep_code)
    try:
        return [as_words(stacks[i]) for i in range(stacks.size())]
    finally:
        native.each_code(stacks, let_code_go)


cdef bytes as_column(const void* first, size_t nbytes):
    return PyBytes_FromStringAndSize(<const char*>first, <Py_ssize_t>nbytes)


# Pre: the GIL is held since the history was read.
cdef tuple as_columns(native.History& history):
    cdef size_t count = history.action.size()
    stacks = in_words(history.stacks)
    return (
        as_column(history.action.data(), count),
        as_column(history.address.data(), 8 * count),
        as_column(history.size.data(), 8 * count),
        as_column(history.thread.data(), 8 * count),
        as_column(history.seconds.data(), 8 * count),
        as_column(history.tag.data(), 4 * count),
        as_column(history.stack.data(), 4 * count),
        [as_text(tag) for tag in history.tags],
        stacks,
    )


@cython.final
@cython.no_gc_clear  # __dealloc__ needs the pool
cdef class PoolHistory:
    """The events of a pool from now on; `memcfg.memory` states the arguments.

    Attributes
    ----------
    pool : Pool
        Whose events they are.
    """

    cdef shared_ptr[native.PoolHistory] core
    cdef readonly Pool pool
    cdef tuple kept  # what `read` returns, once it has ended

    def __cinit__(self, Pool pool not None, max_entries):
        cdef size_t maximum = as_size(max_entries, "a number of entries")
        self.pool = pool
        self.core.reset(new native.PoolHistory(maximum))
        with nogil:
            pool.pool.record(self.core)

    def __dealloc__(self):
        if self.kept is None and self.core.get() != NULL:
            with nogil:
                self.pool.pool.end(self.core.get()[0])

    @property
    def ended(self):
        """Whether nothing is noted any more."""
        return self.kept is not None

    def read(self):
        """Return the columns of `TrackingResource.history`, and more.

        That is how many events are too old, and the second until which all are there.
        """
        cdef native.History history
        kept = self.kept
        if kept is not None:
            return kept
        with nogil:
            history = self.pool.pool.history(self.core.get()[0])
        if self.kept is not None:  # another thread has ended it, perhaps before
            return self.kept
        return as_columns(history), history.dropped, history.end

    def end(self):
        """Note nothing any more; what has been noted stays."""
        kept = self.read()
        if self.kept is None:
            self.kept = kept
            with nogil:
                self.pool.pool.end(self.core.get()[0])


@cython.no_gc_clear  # C++ borrows it
cdef class TrackingResource(Resource):
    """Who holds what, and what happened; `memcfg.memory` puts it into words."""

    cdef native.TrackingResource* tracking
    cdef readonly bint stacks
    cdef readonly size_t max_entries

    def __cinit__(
        self, Resource upstream not None, *, stacks=False, max_entries=100_000
    ):
        cdef size_t maximum = as_size(max_entries, "a number of entries")
        cdef native.StackSource source
        if as_flag(stacks, "stacks"):
            source = native.foreign_source(note_stack, <void*>self)
        self.upstream = upstream
        self.stacks = stacks
        self.max_entries = maximum
        self.tracking = new native.TrackingResource(upstream.core, maximum, source)
        self.core.reset(<native.Resource*>self.tracking)

    def __dealloc__(self):
        if self.tracking == NULL:
            return
        cdef vector[vector[native.Frame]] kept = self.tracking.all_stacks()
        with nogil:
            self.core.reset()
        native.each_code(kept, let_code_go)

    @property
    def dropped(self):
        """How many events were too many, since the last `clear`."""
        return self.tracking.dropped()

    def clear(self):
        """Drop the events, not the blocks that are out."""
        with nogil:
            self.tracking.clear()

    def holders(self):
        """List the blocks that are out, all of one moment, sorted by address.

        A row is the address, the bytes asked for, the same rounded up to 64, the tag,
        the age in seconds, the system's number of the thread, and the stack.
        """
        # The GIL is kept: as long as it is, no code is let go.
        cdef vector[native.LiveBlock] rows = self.tracking.blocks()
        cdef vector[int64_t] numbers
        cdef vector[vector[native.Frame]] stacks
        if self.stacks:
            stacks = self.tracking.stacks(rows, numbers)
        words = dict(zip(numbers, in_words(stacks)))
        return [
            (
                row.address,
                row.requested,
                row.size,
                as_text(row.tag),
                row.seconds,
                row.thread,
                words.get(row.stack, ()),
            )
            for row in rows
        ]

    def history(self):
        """List the events as columns.

        They are bytes of uint8 (0 allocate, 1 free, 2 failure), uint64 (address),
        uint64 (bytes), int64 (thread), float64 (seconds since 1970), int32 (index
        of the tag) and int32 (index of the stack, or -1); then a list of tags and one
        of stacks.
        """
        cdef native.History history = self.tracking.history()  # as in `holders`
        return as_columns(history)


# Called by C++ with none of its own locks held, but perhaps with that of a pool above:
# waiting for the GIL here could be waiting for ever.
cdef void note_trouble() noexcept nogil:
    Py_AddPendingCall(warn_of_logs, NULL)


cdef int warn_of_logs(void* nothing) except -1 with gil:
    for resource in live_resources.alive():
        if isinstance(resource, LoggingResource):
            (<LoggingResource>resource).warn()
    return 0


# Two logs in one file would write over each other, and a log over a mapped array. Whoever
# reads a pipe may need what waits for it: the GIL, or this resource.
cdef int empty_log(int file, object path) except -1:
    mode = os.fstat(file).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        raise OSError(errno.EINVAL, "a log is no pipe", path)
    if not stat.S_ISREG(mode):
        return 0
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(errno.EBUSY, "another log or owner is there", path) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    os.ftruncate(file, 0)
    return 0


@cython.final
@cython.no_gc_clear
cdef class LoggingResource(Resource):
    """Writes what goes through to a file.

    `memcfg.memory.logging` states the arguments and errors.

    Attributes
    ----------
    path : str or bytes
        The file.
    """

    cdef native.LoggingResource* log
    cdef readonly object path
    cdef bint warned
    cdef bint done

    def __cinit__(self, Resource upstream not None, path, *, overwrite=False):
        flags = 0 if as_flag(overwrite, "overwrite") else os.O_EXCL
        watch_the_end()
        self.upstream = upstream
        self.path = os.fspath(path)
        flags |= os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK
        file = os.open(self.path, flags, 0o666)
        try:
            empty_log(file, self.path)
            self.log = new native.LoggingResource(upstream.core, file, note_trouble)
        except BaseException:
            os.close(file)
            raise
        self.core.reset(<native.Resource*>self.log)
        try:
            self.flush()
        except OSError:
            self.done = True
            self.log.close()
            if not overwrite:
                os.unlink(self.path)
            raise

    def __dealloc__(self):
        if self.log != NULL and not self.done:
            self.close()

    cdef int require(self, int error) except -1:
        if error == 0:
            return 0
        lost = self.log.lost()
        rows = f" (rows lost: {lost})" if lost else ""
        raise OSError(error, os.strerror(error) + rows, self.path)

    cdef int warn(self) except -1:
        cdef int error = self.log.error()
        if error == 0 or self.warned:
            return 0
        self.warned = True
        text = f"the log {self.path!r} cannot be written: {os.strerror(error)}"
        warn(text, RuntimeWarning, stacklevel=1)

    @property
    def closed(self):
        """Whether nothing is logged any more."""
        return self.done

    def flush(self):
        """Hand the rows that wait in memory to the system.

        Raises
        ------
        OSError
            If the file does not take them. Rows that find no room in memory any more
            are lost, with all that follow.
        ValueError
            If the log is closed.
        """
        cdef int error
        self.require_open()
        with nogil:
            error = self.log.flush()
        self.require(error)

    def close(self):
        """End the log; what was made of this resource stays, and it makes more.

        Raises
        ------
        OSError
            As `flush`. The file is closed all the same, and ends with a whole row.
        """
        cdef int error
        self.done = True
        with nogil:
            error = self.log.close()
        self.require(error)

    cdef int require_open(self) except -1:
        if self.done:
            raise ValueError("the log is closed")
        return 0

    cdef int finish(self) except -1:
        if self.done:
            return 0
        with nogil:
            self.log.write_through()
        self.flush()

    def __enter__(self):
        self.require_open()
        return self

    def __exit__(self, *exc_info):
        self.close()


cdef bint _watched = False  # the end of the interpreter


cdef int watch_the_end() except -1:
    global _watched
    if not _watched:
        atexit.register(_finish_logs)
        _watched = True
    return 0


# When the interpreter ends objects may be left over, whose files nobody would close.
def _finish_logs():
    """Write what waits in any log, and from now on each row at once."""
    for resource in live_resources.alive():
        if isinstance(resource, LoggingResource):
            try:
                (<LoggingResource>resource).finish()
            except OSError:
                PyErr_WriteUnraisable(resource)


cdef tuple FINAL_RESOURCES = (
    Pool,
    MappedFile,
    SystemResource,
    SimulatedResource,
    CudaResource,
    LimitingResource,
    StatisticsResource,
    TrackingResource,
    LoggingResource,
    FailureCallbackResource,
    WorkspaceMemory,
)
