# Other workspaces than the one that was entered last. A part of numpy_memory.pyx.


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


def scope_out():
    """Leave all workspaces for a ``with`` block."""
    return ScopeOut()
