# Where an array is. A part of numpy_memory.pyx.

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
