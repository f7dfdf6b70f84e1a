# The scopes of workspaces, and where an array is. A part of engine.pyx.
#
# Which workspace is current is what NumPy's allocator of the running context says, and
# nothing else. Each scope that is entered has an `ArrayMemory` in the chain from there:
# its `before` is the capsule that it took the place of. Such a capsule is pushed once,
# on top of older ones, so no chain comes back to itself. A context that was copied
# keeps capsules of scopes that have been left; they are passed over.


cdef class Scope


# An allocator that is another one's, lent: arrays are as if made by that one. It is
# there to be seen in the chain.
cdef object lend(object capsule, object scope):
    handler = <cnp.PyDataMem_Handler*>PyCapsule_GetPointer(capsule, CAPSULE)
    lent = ArrayMemory()
    lent.handler = handler[0]
    lent.under = capsule
    lent.scope = scope
    lent.passing = True
    return capsule_of(lent)


# The capsule in force in the running context.
cdef object top():
    return in_force(cnp.PyDataMem_GetHandler())


# Puts a capsule in place, on top of the one in force. Pre: it never was.
cdef int push(object capsule) except -1:
    memory = memory_of(capsule)
    memory.before = top()
    cnp.PyDataMem_SetHandler(capsule)
    memory.entered = True
    return 0


# Leaves what a capsule stands for, wherever in the chains of contexts it is.
cdef int pull(object capsule) except -1:
    memory = memory_of(capsule)
    memory.entered = False
    memory.before = in_force(memory.before)
    above = cnp.PyDataMem_GetHandler()
    if above is capsule:  # nobody is on top of it
        cnp.PyDataMem_SetHandler(memory.before)
        return 0
    current = in_force(above)
    if current is not above:
        cnp.PyDataMem_SetHandler(current)
    shorten(current)
    return 0


# No capsule of a chain keeps one that has been left: chains would grow for ever.
cdef int shorten(object capsule) except -1:
    memory = memory_of(capsule)
    while memory is not None and memory.before is not None:
        memory.before = in_force(memory.before)
        memory = memory_of(memory.before)
    return 0


cdef Scope scope_of(ArrayMemory memory):
    if memory is None or memory.scope is None:
        return None
    return memory.scope()


# The capsule in force outside of all scopes.
cdef object outermost():
    capsule = top()
    memory = memory_of(capsule)
    while memory is not None and memory.passing:
        capsule = in_force(memory.before)
        memory = memory_of(capsule)
    return capsule


# What a scope has in the running context's chain, the innermost of `capsules`; None:
# none of them.
cdef object innermost(list capsules):
    holder = top()
    while True:
        for capsule in capsules:
            if capsule is holder:
                return holder
        memory = memory_of(holder)
        if memory is None or memory.before is None:
            return None
        holder = memory.before


@cython.no_gc_clear
cdef class Scope:
    """When a workspace's cycle begins and ends, and which workspace is current.

    The base of `memcfg.workspaces.Workspace`, which states what holds: one thread or
    task at a time uses it, arrays may go in any. `memory` has the cycles; with `capture`
    NumPy's arrays come from it while it is current.
    """

    cdef object __weakref__
    cdef readonly WorkspaceMemory memory
    cdef bint capture
    cdef object self_ref
    cdef object parent_ref
    cdef uint64_t generation  # of the cycle that is on, or was last
    cdef list entries  # capsules, one for each time that the cycle was entered
    cdef unsigned long thread  # in which the cycle began
    cdef bint opening
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

    def __dealloc__(self):
        for capsule in self.entries:
            memory_of(capsule).entered = False
        if self.memory is None:
            return
        self.memory.workspace.close()
        self.memory.workspace.destroy()

    # For a subclass that has not called __init__ (yet).
    cdef WorkspaceMemory made(self):
        if self.memory is None:
            raise RuntimeError("the scope has not been made: call super().__init__")
        return self.memory

    # What is to be in place for this scope to be current.
    cdef object make_capsule(self, bint capture):
        if not capture:
            return lend(top(), self.self_ref)
        memory = ArrayMemory(self.memory)
        memory.scope = self.self_ref
        memory.passing = True
        memory.generation = self.generation
        return capsule_of(memory)

    @property
    def parent(self):
        """The workspace that was current when the cycle began."""
        return None if self.parent_ref is None else self.parent_ref()

    @property
    def is_open(self):
        """Whether a cycle is on."""
        return len(self.entries) > 0

    @property
    def is_current(self):
        """Whether it is the innermost workspace of the running thread or task."""
        return len(self.entries) > 0 and scope_of(memory_of(top())) is self

    @property
    def enabled(self):
        """Whether arrays made in it come from its memory; True when a cycle begins."""
        return self.made().workspace.enabled()

    @enabled.setter
    def enabled(self, enabled):
        if not isinstance(enabled, bool):
            raise TypeError(f"enabled is True or False, not {enabled!r}")
        self.made().workspace.set_enabled(enabled)

    cdef int enter(self) except -1:
        if self.opening:
            raise WorkspaceError(f"workspace {self.memory.label!r} is being opened")
        if not self.entries:
            return self.begin()
        if self.thread != PyThread_get_thread_ident():
            raise WorkspaceError(
                f"workspace {self.memory.label!r} is open in another thread: "
                "memcfg.workspace gives each thread its own"
            )
        self.put_in_place()
        return 0

    cdef int begin(self) except -1:
        cdef bint warm
        self.opening = True
        try:
            warm = self.open_cycle()
        finally:
            self.opening = False
        try:
            self.generation = self.memory.workspace.generation()
            self.thread = PyThread_get_thread_ident()
            self.parent_ref = parent_of(top())
            if not warm:
                self.tell_of_page()
            self.put_in_place()
        except BaseException:
            self.parent_ref = None
            self.memory.workspace.cancel()
            raise
        return 0

    # A cycle without its page is begun again when others have given memory back.
    cdef bint open_cycle(self) except -1:
        cdef bint warm = False
        workspace = self.made()
        while True:
            opened = False
            try:
                warm = workspace.workspace.open()
                opened = True
                if not (warm or self.cold):
                    workspace.workspace.rethrow_out_of_memory()
                return warm
            except ResourceExhaustedError as error:
                if make_room(workspace, error):
                    if opened:
                        workspace.workspace.cancel()
                elif opened:
                    return warm
                else:
                    raise

    cdef int put_in_place(self) except -1:
        capsule = self.make_capsule(self.capture)
        self.entries.append(capsule)
        try:
            push(capsule)
        except BaseException:
            self.entries.pop()
            raise
        return 0

    # A cycle without its page.
    cdef int tell_of_page(self) except -1:
        if self.cold:
            return 0
        try:
            self.memory.workspace.rethrow_out_of_memory()
        except ResourceExhaustedError as error:
            self.cold = True
            self._spilled(without_frames(error))
        return 0

    # Ends what was entered last in the running context, and tells what came up in it.
    cdef int leave(self, error) except -1:
        capsule = cnp.PyDataMem_GetHandler()
        last = self.entries[len(self.entries) - 1] if self.entries else None
        if last is not capsule:
            capsule = innermost(self.entries)
        if capsule is None:
            if error is not None:
                return 0  # that is what is to be heard of
            raise WorkspaceError(
                f"workspace {self.made().label!r} is not open in this thread or task"
            )
        if capsule is last:
            self.entries.pop()
        else:
            self.entries = [entry for entry in self.entries if entry is not capsule]
        pull(capsule)
        memory = memory_of(capsule)
        if not self.entries:
            try:
                self.end(error)
            except BaseException as told:
                raised, memory.raised = memory.raised, None
                if raised is not None:
                    raise told from raised
                raise
        if memory.reason is not None or memory.raised is not None:
            raise_pending(memory, error)
        return 0

    cdef int end(self, error) except -1:
        cdef native.WorkspaceEnd end = self.memory.workspace.close()
        self.parent_ref = None
        if error is not None:
            return 0
        try:
            if end.was_disabled:
                self._reenabled()
        finally:
            if end.escaped > 0 and self.memory.on_escape in TOLD:
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
            If there is no memory for its page and it must not spill; it is closed then.
        MemoryError
            If there is no memory for its metadata; it is closed then.
        WorkspaceError
            If it is open in another thread, or being opened; nothing has changed.
        """
        self.enter()
        return self

    def close(self):
        """End what the last `open` began.

        Raises
        ------
        WorkspaceError
            If it is not open in this thread or task: `destroy` ends it anywhere.
        WorkspaceLeakError
            If arrays outlive their cycle and it is made so; it is closed all the same.
        """
        self.leave(None)

    def __enter__(self):
        self.enter()
        return self

    def __exit__(self, kind, error, traceback):
        if self.entries:  # else it has been destroyed inside the block
            self.leave(error)

    def borrow(self):
        """Make it current again for a ``with`` block, without a new cycle.

        Entering that is a WorkspaceError where it is not open, or borrowed already.
        """
        return Borrowing(self, True)

    def inside(self):
        """Do so for the library: it may be borrowed already, and it always captures."""
        return Borrowing(self, False)

    def initialize(self):
        """Learn the size from the cycles so far, if there is none yet.

        Does nothing where nothing is to be learned: with ``learning="none"``, or while
        everything is spilled to find faults.

        Raises
        ------
        ResourceExhaustedError
            If there is no memory for a page of that size; nothing is learned then.
        """
        while True:
            try:
                self.made().workspace.initialize()
                return
            except ResourceExhaustedError as error:
                if not make_room(self.memory, error):
                    raise

    def destroy(self):
        """Give the memory back, or leave it to the arrays that are alive."""
        self._abort()
        self.memory.workspace.destroy()

    def _abort(self):
        """End the cycle, if one is on, for all threads and tasks; tell of nothing."""
        while self.entries:
            pull(self.entries.pop())
        self.parent_ref = None
        self.made().workspace.close()

    def trim(self):
        """Give back what the last cycle did not need.

        A size that was learned becomes that of the last cycle, unless a cycle is on; a
        page that no array needs goes.

        Returns
        -------
        int
            The bytes given back.
        """
        return self.made().workspace.shrink()

    def counters(self):
        """Read what `WorkspaceMemory.numbers` returns."""
        return self.made().numbers()

    def _escaped(self, count):
        """Hear that arrays have outlived their cycle; may raise."""

    def _spilled(self, error):
        """Hear once that there is no page for a cycle."""

    def _reenabled(self):
        """Hear that a cycle ended while it was disabled."""


# A weak reference to the scope in force that is open; None: there is none.
cdef object parent_of(object capsule):
    memory = memory_of(capsule)
    scope = scope_of(memory)
    return memory.scope if scope is not None and scope.entries else None


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
            scope.borrowed = True
        self.capsule = scope.make_capsule(scope.capture or not self.by_user)
        push(self.capsule)
        return scope

    def __exit__(self, kind, error, traceback):
        if self.capsule is None:
            raise RuntimeError("the block is not entered")
        capsule, self.capsule = self.capsule, None
        if self.by_user:
            self.scope.borrowed = False
        pull(capsule)
        raise_pending(memory_of(capsule), error)


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


def scope_out():
    """Leave all workspaces for a ``with`` block."""
    return ScopeOut()


cdef dict KINDS = {
    native.WorkspaceKind.page: "page",
    native.WorkspaceKind.retired: "retired",
    native.WorkspaceKind.spilled: "spilled",
    native.WorkspaceKind.pinned: "pinned",
    native.WorkspaceKind.outside: "outside",
    native.WorkspaceKind.overwritten: "overwritten",
}


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


def current_scope():
    """Find the innermost workspace of the running thread or task; None outside."""
    scope = scope_of(memory_of(top()))
    return scope if scope is not None and scope.entries else None


def placement_of(cnp.ndarray array not None):
    """Find where in a workspace an array's memory is; None where it is in none."""
    owner = holder_of(array)
    cdef optional[native.WorkspaceBlockInfo] found
    if not isinstance(owner, cnp.ndarray):
        return None
    memory = source_of(owner)
    if memory is None or memory.workspace == NULL:
        return None
    address = cnp.PyArray_DATA(owner)
    found = memory.workspace.find_block(address, memory.generation)
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
