# The memory of NumPy's arrays, taken from a resource: the data allocator that NumPy calls
# (NEP 49) and its place in the running context, a resource's or that of a workspace's
# scope. A part of engine.pyx.
#
# An array keeps the allocator that made it, which keeps the resource: an array may
# outlive the block that it was made in, be freed by any thread, and be left over when the
# interpreter ends. What NumPy calls never holds the capsule that NumPy knows it by: that
# would be a cycle that nobody could break.

cdef extern from "Python.h":
    bint PyGILState_Check()
    ctypedef struct PyFrameObject:
        pass
    PyFrameObject* PyEval_GetFrame()
    unsigned long PyThread_get_thread_ident()

cdef extern from "numpy/arrayobject.h":
    PyObject* PyArray_HANDLER(cnp.ndarray array)

cnp.import_array()

ctypedef void* (*Taker)(Resource, size_t, bint, str) noexcept
ctypedef void* (*ScopeTaker)(WorkspaceMemory, size_t, bint, uint64_t) noexcept

cdef const char* CAPSULE = "mem_handler"  # the name that NumPy insists on
cdef object ENTERED = ContextVar("memcfg_numpy_allocator")


# What NumPy calls, and the resource that it calls for. NumPy's struct lies in it.
@cython.final
@cython.freelist(16)  # a cycle of a workspace makes one
@cython.no_gc_clear  # C code holds it by a pointer
cdef class ArrayMemory:
    cdef cnp.PyDataMem_Handler handler
    cdef Resource resource
    cdef native.Resource* core  # of the resource
    cdef str tag
    cdef bint entered  # a block of it will be left
    cdef bint abandoned  # it was left out of turn: whoever comes back to it goes on
    cdef native.Workspace* workspace  # of the resource; null where it is none
    cdef uint64_t generation  # of the arrays made with this, where it is a workspace's
    cdef object scope  # a weak reference to whose memory it is; None: nobody's
    cdef bint passing  # made by a workspace, to be entered once
    cdef object under  # the capsule whose allocator is lent; None: this one has its own
    cdef object before  # the capsule that was in place; None: never entered
    cdef object refusal  # the last ResourceExhaustedError
    cdef object reason  # the last MemoryError, and
    cdef tuple site  # where in the program it came up: see `site_now`
    cdef object raised  # what else came up, and nobody was told yet
    cdef set moving  # the addresses that `move` is at work on; None: it never was

    def __cinit__(self, Resource resource=None, str tag=""):
        if resource is None:  # see `lend`
            return
        self.resource = resource
        self.core = resource.core.get()
        if isinstance(resource, WorkspaceMemory):
            self.workspace = (<WorkspaceMemory>resource).workspace
        self.tag = tag
        strcpy(self.handler.name, "memcfg")
        self.handler.version = 1
        self.handler.allocator.ctx = <void*>self
        self.handler.allocator.malloc = take
        self.handler.allocator.calloc = take_zeroed
        self.handler.allocator.realloc = move
        self.handler.allocator.free = release

    # NumPy tells in its own words that there is no memory, and loses the reason. A
    # Ctrl-C is signalled anew, for nothing to swallow it.
    cdef void* fail(self, error) noexcept:
        if isinstance(error, MemoryError):
            self.reason, self.site = without_frames(error), site_now()
            if isinstance(error, ResourceExhaustedError):
                self.refusal = error
        elif is_interrupt(error):
            PyErr_SetInterrupt()
        elif not self.entered:
            tell(error)
        else:
            last, self.raised = self.raised, error
            if last is not None:
                tell(last)
        return NULL


# The hooks. NumPy calls them with the GIL as a rule, but promises it
# nowhere; where it reads an array from a text it has let it go.
cdef void* take(void* context, size_t size) noexcept:
    if PyGILState_Check():
        return take_block(context, size, False)
    return lock_and_take(context, size, False)


cdef void* take_zeroed(void* context, size_t count, size_t size) noexcept:
    if size != 0 and count > SIZE_MAX // size:
        return NULL
    if PyGILState_Check():
        return take_block(context, count * size, True)
    return lock_and_take(context, count * size, True)


cdef void* lock_and_take(void* context, size_t size, bint zeroed) noexcept with gil:
    return take_block(context, size, zeroed)


# A try would cost as much as the block: the exception is looked at if there is no block.
cdef inline void* take_block(void* context, size_t size, bint zeroed) noexcept:
    cdef void* data
    if (<ArrayMemory>context).workspace != NULL:
        data = (<ScopeTaker>take_scoped)(
            <WorkspaceMemory>(<ArrayMemory>context).resource,
            size,
            zeroed,
            (<ArrayMemory>context).generation,
        )
    else:
        data = (<Taker>take_array)(
            (<ArrayMemory>context).resource, size, zeroed, (<ArrayMemory>context).tag
        )
    return data if data != NULL else wait_or_fail(<ArrayMemory>context, size, zeroed)


# Pre: an exception is set.
cdef void* wait_or_fail(ArrayMemory memory, size_t size, bint zeroed) noexcept:
    try:
        raise_it()
    except ResourceExhaustedError as error:
        if timeout_of(memory.resource) == 0 and not may_make_room(memory, error):
            return memory.fail(error)
    except BaseException as error:
        return memory.fail(error)
    try:
        if memory.workspace != NULL:
            return await_scoped(memory.resource, size, zeroed, memory.generation)
        return await_array(memory.resource, size, zeroed, memory.tag)
    except BaseException as error:
        return memory.fail(error)


# A holder's own failure is told, and the request is refused.
cdef bint may_make_room(ArrayMemory memory, error) noexcept:
    try:
        return make_room(memory.resource, error)
    except BaseException as failure:
        memory.fail(failure)
        return False


# Whoever frees memory may run any code, which must not resize the same array meanwhile.
cdef void* move(void* context, void* data, size_t size) noexcept with gil:
    memory = <ArrayMemory>context
    if data == NULL:
        return take(context, size)
    key = <uintptr_t>data
    try:
        if memory.moving is None:
            memory.moving = set()
        if key in memory.moving:
            raise RuntimeError("the array is being resized already")
        memory.moving.add(key)
        try:
            if memory.workspace != NULL:
                return resize_scoped_again(
                    memory.resource, data, size, memory.generation
                )
            return resize_array(memory.resource, data, size, memory.tag)
        finally:
            memory.moving.discard(key)
    except BaseException as error:
        return memory.fail(error)


# The size that NumPy names is not always the one it asked for, so it is not heeded.
cdef void release(void* context, void* data, size_t size) noexcept nogil:
    if data != NULL and not release_block(context, data):
        tell_of_free(data)


cdef inline bint release_block(void* context, void* data) noexcept nogil:
    cdef native.Workspace* workspace = (<ArrayMemory>context).workspace
    if workspace == NULL:
        return (<ArrayMemory>context).core.release(data)
    return workspace.release_of(data, (<ArrayMemory>context).generation)


# An array may go while an exception is on its way, which must stay as it is.
cdef void tell_of_free(void* data) noexcept with gil:
    cdef PyObject* kind
    cdef PyObject* error
    cdef PyObject* traceback
    PyErr_Fetch(&kind, &error, &traceback)
    tell(
        InvalidFreeError(
            f"an array's memory at {<uintptr_t>data:#x} has been freed elsewhere"
        )
    )
    PyErr_Restore(kind, error, traceback)


# The capsule that is to be in place: this one, or the one below those that are left. An
# allocator that was left out of turn can be entered again now.
cdef object in_force(object capsule):
    memory = memory_of(capsule)
    while memory is not None and is_left(memory):
        capsule = memory.before
        if memory.abandoned:
            memory.before = None
            memory.entered = memory.abandoned = False
        memory = memory_of(capsule)
    return capsule


# The capsule itself, or the first below it that is not of a scope that has been left.
cdef object without_scopes(object capsule):
    memory = memory_of(capsule)
    while memory is not None and memory.passing and not memory.entered:
        capsule = memory.before
        memory = memory_of(capsule)
    return capsule


# A user's allocator is left in turn, or out of turn: then it stays in the chain. What a
# workspace puts in place is made for one time, and stays in the chains of other contexts.
cdef bint is_left(ArrayMemory memory):
    return memory.abandoned or (memory.passing and not memory.entered)


# None where another library's allocator, or NumPy's own, has the capsule.
cdef ArrayMemory memory_of(object capsule):
    if PyCapsule_GetDestructor(capsule) != drop:
        return None
    return <ArrayMemory>PyCapsule_GetContext(capsule)


cdef void drop(object capsule) noexcept:
    Py_DECREF(<object>PyCapsule_GetContext(capsule))


cdef object capsule_of(ArrayMemory memory):
    capsule = PyCapsule_New(&memory.handler, CAPSULE, drop)
    Py_INCREF(memory)
    PyCapsule_SetContext(capsule, <void*>memory)
    return capsule


# For what nobody is left to be told.
cdef void tell(error) noexcept:
    PyErr_SetObject(type(error), error)
    PyErr_WriteUnraisable("memcfg.memory.numpy_allocator")


# What came up inside is told when the block is left: by what NumPy made of it, `error`,
# or by itself.
cdef int raise_pending(ArrayMemory memory, error) except -1:
    raised, memory.raised = memory.raised, None
    reason, memory.reason = memory.reason, None
    if error is not None and not isinstance(error, Exception):
        if raised is not None:
            tell(raised)  # nothing takes the place of a Ctrl-C
        return 0
    if raised is not None:
        raise raised
    PyErr_CheckSignals()
    if reason is None or not came_from(error, memory.site):
        return 0
    # What `refusal` shows stays without a traceback: that would keep arrays alive.
    raise (copy(reason) if reason is memory.refusal else reason) from error


cdef bint is_interrupt(error):
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )


# Frames keep what their variables name: arrays, above all.
cdef object without_frames(error):
    error.__traceback__ = error.__context__ = None
    return error


# The instruction that runs now. The frame is not kept: it would keep its variables, and
# an exception that passed it keeps it anyway.
cdef tuple site_now():
    cdef PyObject* frame = <PyObject*>PyEval_GetFrame()
    return None if frame == NULL else site_of(<object>frame, (<object>frame).f_lasti)


cdef tuple site_of(frame, instruction):
    return <uintptr_t><void*>frame, frame.f_code, instruction


cdef bint came_from(error, tuple site):
    traceback = error.__traceback__ if isinstance(error, MemoryError) else None
    while traceback is not None:
        if site_of(traceback.tb_frame, traceback.tb_lasti) == site:
            return True
        traceback = traceback.tb_next
    return False


@cython.final
@cython.no_gc_clear  # it can be left as long as it is there; a cycle passes a closure
cdef class NumpyAllocator:
    """Puts NumPy's arrays into `resource` while it is entered, under `tag`.

    `memcfg.memory.numpy_allocator` states the arguments, the errors and what holds.
    """

    cdef ArrayMemory memory
    cdef object capsule
    cdef object token  # of the context that it was entered in

    def __cinit__(self, Resource resource not None, *, str tag not None="numpy"):
        if not resource.core.get().touchable():
            raise ValueError(
                "arrays need memory of the host: a GPU's is out of its reach, and a "
                "simulated device has none"
            )
        self.memory = ArrayMemory(resource, tag)
        self.capsule = capsule_of(self.memory)

    @property
    def resource(self):
        """Where the memory of the arrays comes from."""
        return self.memory.resource

    @property
    def tag(self):
        """Who holds it, for statistics."""
        return self.memory.tag

    @property
    def refusal(self):
        """The last refusal as a ResourceExhaustedError; None when there was none."""
        return self.memory.refusal

    def __enter__(self):
        if self.memory.before is not None:
            raise RuntimeError("the allocator is entered already; make another one")
        self.token = ENTERED.set(None)
        current_tag.set(current_tag.get())  # found faster where the context has it
        self.memory.before = cnp.PyDataMem_SetHandler(self.capsule)
        self.memory.entered = True
        return self

    cdef int leave(self) except -1:
        if self.memory.before is None:
            raise RuntimeError("the allocator is not entered")
        if without_scopes(cnp.PyDataMem_GetHandler()) is not self.capsule:
            self.memory.abandoned = True
            raise RuntimeError(
                "another allocator of NumPy's is in place: this one is left in another "
                "thread or task than it was entered in, or before one entered later"
            )
        try:
            ENTERED.reset(self.token)
        except (ValueError, RuntimeError):
            raise RuntimeError(
                "the allocator is left in another task than it was entered in"
            ) from None
        self.token = None
        before, self.memory.before = self.memory.before, None
        self.memory.entered = False
        cnp.PyDataMem_SetHandler(in_force(before))
        return 0

    def __exit__(self, kind, error, traceback):
        self.leave()
        raise_pending(self.memory, error)

    def __call__(self, function):
        """Make a function run in an allocator of its own at each call, in any thread.

        TypeError if it is not callable, or a generator or coroutine function: what that
        does comes after its call.
        """
        if not callable(function):
            raise TypeError(f"not callable: {function!r}")
        if runs_later(function):
            raise TypeError(f"use a with statement inside {function!r}: it runs later")
        resource, tag = self.resource, self.tag

        @wraps(function)
        def within(*args, **kwargs):
            with NumpyAllocator(resource, tag=tag):
                return function(*args, **kwargs)

        return within

    def __repr__(self):
        state = "entered" if self.memory.entered else "not entered"
        return f"<NumpyAllocator {self.tag!r} on {self.resource!r}, {state}>"


cdef bint runs_later(function):
    return (
        iscoroutinefunction(function)
        or isgeneratorfunction(function)
        or isasyncgenfunction(function)
    )


# Whose memory an array's own bytes are; None where it is not ours.
cdef ArrayMemory source_of(cnp.ndarray array):
    cdef PyObject* capsule = PyArray_HANDLER(array)
    if capsule == NULL:
        return None
    memory = memory_of(<object>capsule)
    while memory is not None and memory.under is not None:
        memory = memory_of(memory.under)
    return memory


# Whose memory a view shows: the array that owns it, a block or an arena; None where nobody
# says.
cdef object holder_of(object holder):
    while holder is not None:
        if isinstance(holder, cnp.ndarray):
            if cnp.PyArray_CHKFLAGS(holder, cnp.NPY_ARRAY_OWNDATA):
                return holder
            holder = cnp.get_array_base(<cnp.ndarray>holder)
        elif isinstance(holder, (Block, Arena)):
            return holder
        elif isinstance(holder, memoryview):
            holder = holder.obj
        elif hasattr(holder, "__array_interface__"):
            holder = getattr(holder, "base", None)  # a window of stride_tricks
        else:
            return None
    return None


def resource_of(cnp.ndarray array not None):
    """Find the resource that an array's memory is of; None where it is not ours."""
    cdef ArrayMemory memory = None
    holder = holder_of(array)
    if isinstance(holder, Block):
        return (<Block>holder).resource
    if isinstance(holder, Arena):
        return (<Arena>holder).pool
    if holder is not None:
        memory = source_of(holder)
    return None if memory is None else memory.resource

