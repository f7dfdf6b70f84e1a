# The scopes of workspaces. A part of numpy_memory.pyx.
#
# Which workspace is current is what NumPy's allocator of the running context says, and
# nothing else. Each scope that is entered has an `ArrayMemory` in the chain from there:
# its `before` is the capsule that it took the place of.

cdef dict KINDS = {
    native.WorkspaceKind.page: "page",
    native.WorkspaceKind.retired: "retired",
    native.WorkspaceKind.spilled: "spilled",
    native.WorkspaceKind.pinned: "pinned",
    native.WorkspaceKind.outside: "outside",
    native.WorkspaceKind.overwritten: "overwritten",
}


# An allocator that is another one's, lent: arrays are as if made by that one. It is
# there to be seen in the chain.
cdef object lend(object capsule, object scope):
    handler = <cnp.PyDataMem_Handler*>PyCapsule_GetPointer(capsule, CAPSULE)
    lent = ArrayMemory()
    lent.handler = handler[0]
    lent.under = capsule
    lent.scope = scope
    return capsule_of(lent)


# Puts a capsule in place, on top of the one that is there.
cdef int push(object capsule) except -1:
    memory = memory_of(capsule)
    memory.before = cnp.PyDataMem_SetHandler(capsule)
    memory.entered = True
    return 0


# Takes a capsule out of the chain, wherever in it it is. One that is not in it was put
# in place in another context, where it stays and is that of a closed scope.
cdef int pull(object capsule) except -1:
    memory = memory_of(capsule)
    before, memory.before = memory.before, None
    memory.entered = False
    top = cnp.PyDataMem_GetHandler()
    if top is capsule:
        cnp.PyDataMem_SetHandler(before)
        return 0
    holder = memory_of(top)
    while holder is not None and holder.before is not None:
        if holder.before is capsule:
            holder.before = before
            return 0
        holder = memory_of(holder.before)
    return 0


cdef Scope scope_of(ArrayMemory memory):
    if memory is None or memory.scope is None:
        return None
    return memory.scope()


# The capsule in place outside of all scopes.
cdef object outermost():
    capsule = cnp.PyDataMem_GetHandler()
    memory = memory_of(capsule)
    while memory is not None and memory.before is not None:
        if memory.scope is None and memory.under is None:  # a user's allocator
            break
        capsule = memory.before
        memory = memory_of(capsule)
    return capsule


@cython.no_gc_clear
cdef class Scope:
    """When a workspace's cycle begins and ends, and which workspace is current.

    The base of `memcfg.workspaces.Workspace`, which states what holds. One thread or
    task at a time uses it; arrays may go in any.

    Parameters
    ----------
    memory : WorkspaceMemory
        Whose cycles they are.
    capture : bool, default True
        Whether NumPy's arrays come from it while it is current.

    Attributes
    ----------
    memory : WorkspaceMemory
        Whose cycles they are.
    parent : Scope or None
        The workspace that was current when the cycle began.
    """

    cdef object __weakref__
    cdef readonly WorkspaceMemory memory
    cdef readonly Scope parent
    cdef bint capture
    cdef object self_ref
    cdef object capsule  # of the cycles; where memory is overwritten, of one
    cdef list entries  # of this cycle: capsules in the chain, None where it was current
    cdef bint borrowed
    cdef bint cold  # it has been told that there is no page

    def __cinit__(self, *args, **kwargs):
        self.entries = []

    def __init__(self, WorkspaceMemory memory not None, capture=True):
        if self.memory is not None:
            raise RuntimeError("a scope is made once")
        self.memory = memory
        self.capture = capture
        self.self_ref = ref(self)
        self.capsule = self.make_capsule(0)

    def __dealloc__(self):
        if self.memory is None or self.memory.workspace == NULL:
            return
        self.memory.end()
        self.memory.forget()

    # For a subclass that has not called __init__ (yet).
    cdef WorkspaceMemory made(self):
        if self.memory is None:
            raise RuntimeError("the scope has not been made: call super().__init__")
        return self.memory

    cdef object make_capsule(self, uint64_t generation):
        memory = ArrayMemory(self.memory)
        memory.scope = self.self_ref
        memory.generation = generation
        return capsule_of(memory)

    # What is to be in place for this scope to be current.
    cdef object current_capsule(self):
        if self.capture:
            return self.make_capsule(memory_of(self.capsule).generation)
        return lend(cnp.PyDataMem_GetHandler(), self.self_ref)

    cdef bint on_top(self):
        memory = memory_of(cnp.PyDataMem_GetHandler())
        return memory is not None and memory.scope is self.self_ref

    @property
    def is_open(self):
        """Whether a cycle is on."""
        return len(self.entries) > 0

    @property
    def is_current(self):
        """Whether it is the innermost workspace of the running thread or task."""
        return self.on_top()

    @property
    def enabled(self):
        """Whether arrays made in it come from its memory; True when a cycle begins."""
        return self.made().enabled()

    @enabled.setter
    def enabled(self, enabled):
        if not isinstance(enabled, bool):
            raise TypeError(f"enabled is True or False, not {enabled!r}")
        self.made().enable(enabled)

    cdef int enter(self) except -1:
        if self.entries:
            return self.enter_again()
        cdef bint warm = self.made().begin()
        try:
            if not warm:
                self.tell_of_page()
            self.put_in_place()
        except BaseException:
            self.memory.end()
            raise
        return 0

    cdef int put_in_place(self) except -1:
        if self.memory.overwrites():
            self.capsule = self.make_capsule(self.memory.generation())
        top = cnp.PyDataMem_GetHandler()
        self.parent = scope_of(memory_of(top))
        capsule = self.capsule if self.capture else lend(top, self.self_ref)
        push(capsule)
        self.entries.append(capsule)
        return 0

    cdef int enter_again(self) except -1:
        capsule = None
        if not self.on_top():
            capsule = self.current_capsule()
            push(capsule)
        self.entries.append(capsule)
        return 0

    # A cycle without its page: under `fail` it does not begin.
    cdef int tell_of_page(self) except -1:
        try:
            self.memory.refuse()
        except ResourceExhaustedError as error:
            if self.memory.spill == "fail":
                raise
            if not self.cold:
                self.cold = True
                self._spilled(without_frames(error))
        return 0

    cdef int leave(self, error) except -1:
        if not self.entries:
            raise WorkspaceError(f"workspace {self.made().label!r} is not open")
        capsule = self.entries.pop()
        if capsule is not None:
            pull(capsule)
        if not self.entries:
            self.end(error)
        return 0

    cdef int end(self, error) except -1:
        cdef native.WorkspaceEnd end = self.memory.end()
        self.parent = None
        if end.was_disabled and error is None:
            self._reenabled()
        if end.escaped > 0 and error is None and self.memory.on_escape in TOLD:
            self._escaped(end.escaped)
        return 0

    def open(self):
        """Begin a cycle; where one is on, one more `close` is needed to end it.

        Returns
        -------
        Scope
            This one.

        Raises
        ------
        ResourceExhaustedError
            If there is no room for its page and it must not spill; it is closed then.
        MemoryError
            If the books find no memory; it is closed then.
        """
        self.enter()
        return self

    def close(self):
        """End what the last `open` began.

        Raises
        ------
        WorkspaceError
            If it is not open.
        WorkspaceLeakError
            If arrays outlive their cycle and it is made so; it is closed all the same.
        """
        self.leave(None)

    def __enter__(self):
        self.enter()
        return self

    def __exit__(self, kind, error, traceback):
        memory = memory_of(self.capsule)
        self.leave(error)
        if memory.reason is not None or memory.raised is not None:
            settle(memory, error)

    def borrow(self):
        """Make it current again for a ``with`` block, without a new cycle.

        Returns
        -------
        context manager
            Gives this scope. Entering it is a WorkspaceError where the scope is not
            open, or is borrowed already.
        """
        return Borrowing(self, True)

    def inside(self):
        """Do the same from inside the library: it may be borrowed already.

        Returns
        -------
        context manager
            Gives this scope; NumPy's arrays come from it whatever `capture` says.
            Entering it is a WorkspaceError where the scope is not open.
        """
        return Borrowing(self, False)

    def initialize(self):
        """Learn the size from the cycles so far, if there is none yet.

        Does nothing where nothing is to be learned: with ``learning="none"``, or while
        everything is spilled to find faults.

        Raises
        ------
        ResourceExhaustedError
            If there is no room for a page of that size; nothing is learned then.
        """
        self.made().learn()

    def destroy(self):
        """Give the memory back, or leave it to the arrays that are alive."""
        while self.entries:
            capsule = self.entries.pop()
            if capsule is not None:
                pull(capsule)
        self.parent = None
        self.made().end()
        self.memory.forget()

    def trim(self):
        """Give back what the last cycle did not need.

        A size that was learned becomes that of the last cycle, unless a cycle is on; a
        page that no array needs goes.

        Returns
        -------
        int
            The bytes given back.
        """
        return self.made().shrink()

    def counters(self):
        """Read the numbers of the cycles.

        Returns
        -------
        dict of str to int
            What `WorkspaceMemory.numbers` returns.
        """
        return self.made().numbers()

    def _escaped(self, count):
        """Hear that arrays have outlived their cycle; may raise."""

    def _spilled(self, error):
        """Hear once that there is no page for a cycle."""

    def _reenabled(self):
        """Hear that a cycle ended while it was disabled."""


cdef tuple TOLD = ("warn", "error")


@cython.final
cdef class Borrowing:
    """A ``with`` block in which a workspace that is open is current again."""

    cdef Scope scope
    cdef bint by_user
    cdef object capsule

    def __cinit__(self, Scope scope not None, bint by_user):
        self.scope = scope
        self.by_user = by_user

    def __enter__(self):
        scope = self.scope
        if self.capsule is not None:
            raise RuntimeError("the block is entered already; make another one")
        if not scope.entries:
            raise WorkspaceError(
                f"workspace {scope.made().label!r} is not open: enter it first"
            )
        if self.by_user:
            if scope.borrowed:
                raise WorkspaceError(
                    f"Can't borrow from borrowed workspace {scope.memory.label!r}"
                )
            self.capsule = scope.current_capsule()
            scope.borrowed = True
        else:
            self.capsule = scope.make_capsule(memory_of(scope.capsule).generation)
        push(self.capsule)
        return scope

    def __exit__(self, kind, error, traceback):
        if self.capsule is None:
            raise RuntimeError("the block is not entered")
        capsule, self.capsule = self.capsule, None
        if self.by_user:
            self.scope.borrowed = False
        pull(capsule)
        settle(memory_of(capsule), error)


@cython.final
cdef class ScopeOut:
    """A ``with`` block outside of all workspaces."""

    cdef object capsule

    def __enter__(self):
        if self.capsule is not None:
            raise RuntimeError("the block is entered already; make another one")
        self.capsule = lend(outermost(), None)
        push(self.capsule)

    def __exit__(self, kind, error, traceback):
        if self.capsule is None:
            raise RuntimeError("the block is not entered")
        capsule, self.capsule = self.capsule, None
        pull(capsule)


class Placement(NamedTuple):
    """Where an array's memory is: which workspace, how, since which cycle.

    `kind` is "page", "spilled" or "pinned", "retired" for a page that is its arrays'
    alone, "outside" for what no cycle counts, "overwritten" where the memory has been
    used again. `scope` is None where the workspace is gone. `nbytes` are the bytes of
    the array that owns them, as asked for; 0 where they are overwritten.
    """

    scope: Scope | None
    label: str
    kind: str
    generation: int
    address: int
    nbytes: int


def scope_out():
    """Leave all workspaces for a ``with`` block."""
    return ScopeOut()


def current_scope():
    """Find the innermost workspace of the running thread or task; None outside."""
    return scope_of(memory_of(cnp.PyDataMem_GetHandler()))


# The array whose memory a view shows; None where it is no array's.
cdef cnp.ndarray owner_array(array):
    holder = array
    while holder is not None:
        if isinstance(holder, cnp.ndarray):
            if cnp.PyArray_CHKFLAGS(holder, cnp.NPY_ARRAY_OWNDATA):
                return holder
            holder = cnp.get_array_base(<cnp.ndarray>holder)
        elif isinstance(holder, memoryview):
            holder = holder.obj
        elif hasattr(holder, "__array_interface__"):
            holder = getattr(holder, "base", None)  # a window of stride_tricks
        else:
            return None
    return None


def placement_of(cnp.ndarray array not None):
    """Find where in a workspace an array's memory is; None where it is in none."""
    cdef cnp.ndarray owner = owner_array(array)
    cdef optional[native.WorkspacePlacement] found
    if owner is None:
        return None
    memory = source_of(owner)
    if memory is None or memory.workspace == NULL:
        return None
    address = cnp.PyArray_DATA(owner)
    found = (<WorkspaceMemory>memory.resource).place_of(address, memory.generation)
    if not found.has_value():
        return None
    return Placement(
        scope_of(memory),
        (<WorkspaceMemory>memory.resource).label,
        KINDS[found.value().kind],
        found.value().generation,
        <uintptr_t>address,
        found.value().size,
    )
