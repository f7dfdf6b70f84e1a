# Locks and bounds whose taking and leaving no signal handler can divide: each is one
# call from Python. And calls of Python that no handler divides. A part of engine.pyx.

cdef int _WAIT = 50  # milliseconds between two looks at the signals that came meanwhile


ctypedef fused Queue:
    native.FairLock
    native.Semaphore


cdef extern from *:
    """
    static thread_local int held_turns = 0;
    """
    int held_turns  # of all locks, in the calling thread


# Returns whether it is acquired; False after about so many milliseconds, -1 is for good.
cdef bint acquire(Queue* queue, int64_t patience=-1) except -1:
    cdef shared_ptr[native.Waiter] waiter
    cdef native.bool acquired = False
    with nogil:
        waiter = queue.enter()
    while waiter:
        with nogil:
            acquired = queue.wait(waiter, native.milliseconds(_WAIT))
        if acquired:
            return True
        if patience >= 0:
            patience -= _WAIT
            if patience < 0:
                queue.cancel(waiter)
                return False
        try:
            PyErr_CheckSignals()
        except BaseException:
            queue.cancel(waiter)
            raise
    return True


def holds_turn():
    """Return whether the calling thread has a turn of any lock."""
    return held_turns > 0


@cython.final
cdef class Lock:
    """A re-entrant lock of a model, handed over in the order of arrival.

    In the child of a fork, a lock that another thread had, or whose session another
    thread was in, is a RuntimeError for good.
    """

    cdef unique_ptr[native.FairLock] core  # while it is held
    cdef unique_ptr[native.FairLock] long_use
    cdef str name
    cdef bint in_step  # of the thread that has it

    def __cinit__(self, str name not None):
        self.name = name
        self.core.reset(new native.FairLock(as_string(name)))
        self.long_use.reset(new native.FairLock(as_string(name)))

    def turn(self):
        """Return a context that has the lock; waits with the GIL released."""
        return Turn.__new__(Turn, self, None)

    def step(self):
        """Return a context that has the lock, and that no thread enters twice."""
        return Turn.__new__(Turn, self, None, True)

    def turn_within(self, double seconds):
        """Return a context that says whether it has the lock, after about so long."""
        cdef Turn turn = Turn.__new__(Turn, self, None)
        turn.patience = <int64_t>(seconds * 1000)
        return turn

    def require_no_step(self):
        """Raise RuntimeError if the calling thread is amid a step of it."""
        if self.in_step and not self.core.get().elsewhere():
            raise RuntimeError(
                f"{self.name} is in the middle of a step in this thread, whose memory "
                "this would overwrite: do it between two steps"
            )

    def session(self, str message not None):
        """Return a context, amid which others have turns, that one thread can be in."""
        return Turn.__new__(Turn, self, message)

    def require_no_session(self, str message not None):
        """Raise RuntimeError with the message amid another thread's session."""
        if self.long_use.get().elsewhere():
            raise RuntimeError(message)

    @property
    def is_in_step(self):
        """Whether the thread that has it is amid a step."""
        return self.in_step

    @property
    def waiting(self):
        """How many wait for it."""
        return self.core.get().waiting()

    cdef bint take(self, int64_t patience=-1) except -1:
        if native.fork_count() > 0:
            self.long_use.get().elsewhere()
        return acquire(self.core.get(), patience)

    cdef int take_step(self) except -1:
        self.take()
        try:
            self.require_no_step()
        except BaseException:
            self.core.get().leave()
            raise
        self.in_step = True
        return 0

    cdef int take_session(self, str message) except -1:
        self.take()
        try:
            if not self.long_use.get().try_enter():
                raise RuntimeError(message)
        finally:
            self.core.get().leave()
        return 0


@cython.final
@cython.freelist(8)
cdef class Turn:
    """What a `with` statement holds of a `Lock`.

    Whatever interrupts the statement between its parts ends this object, which leaves
    the lock then.
    """

    cdef Lock lock
    cdef str message  # of a session that is refused; None is a turn
    cdef bint is_step
    cdef bint held
    cdef int64_t patience  # milliseconds to wait; -1 is for good

    def __cinit__(self, Lock lock not None, str message, bint is_step=False):
        self.lock = lock
        self.message = message
        self.is_step = is_step
        self.patience = -1

    def __enter__(self):
        global held_turns
        if self.is_step:
            self.lock.take_step()
        elif self.message is not None:
            self.lock.take_session(self.message)
        elif not self.lock.take(self.patience):
            return False
        self.held = True
        if self.message is None:
            held_turns += 1
        return True

    def __exit__(self, *exception):
        self.leave()

    def __dealloc__(self):
        self.leave()

    cdef int leave(self) except -1:
        global held_turns
        if not self.held:
            return 0
        self.held = False
        if self.message is None:
            if self.is_step:
                self.lock.in_step = False
            if self.lock.core.get().leave():  # not where another thread drops this
                held_turns -= 1
        else:
            self.lock.long_use.get().leave()
        return 0


@cython.final
cdef class Counter:
    """A number of steps, which a program's run advances when it has ended."""

    cdef readonly int64_t value

    def __cinit__(self, int64_t value=0):
        self.value = value

    def advance(self):
        """Count a step."""
        self.value += 1

    def __reduce__(self):
        return Counter, (self.value,)

    def __repr__(self):
        return f"Counter({self.value})"


cdef native.Semaphore* _running = new native.Semaphore()  # for good: threads outlive the module


def set_max_running(count):
    """Choose how many programs of this process may run at once; 0 is no bound."""
    cdef size_t bound = as_size(count, "a number of programs")
    with nogil:
        _running.set_bound(bound)


cdef class Apart:
    cdef object function
    cdef object result
    cdef object error


cdef void call_function(void* context) noexcept with gil:
    cdef Apart apart = <Apart>context
    try:
        apart.result = apart.function()
    except BaseException as error:
        apart.error = error


# Handlers of signals, which the main thread alone runs, and exceptions that are set
# from outside, wait until it is over.
cpdef object call_undivided(function):
    """Call a function in a thread of its own, so that no signal comes between."""
    cdef Apart apart = Apart()
    apart.function = partial(copy_context().run, function)
    with nogil:
        native.call_apart(call_function, <void*>apart)
    if apart.error is not None:
        raise apart.error
    return apart.result


def fork_count():
    """Count the forks between the process that loaded this module and this one."""
    return native.fork_count()
