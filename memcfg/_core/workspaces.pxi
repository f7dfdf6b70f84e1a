# The memory of a workspace. A part of engine.pyx.

cdef dict LEARNING = {
    "first_loop": native.WorkspaceLearning.first_loop,
    "over_time": native.WorkspaceLearning.over_time,
    "none": native.WorkspaceLearning.never,
}
cdef dict SPILL = {
    "external": native.WorkspaceSpill.external,
    "reallocate": native.WorkspaceSpill.reallocate,
    "fail": native.WorkspaceSpill.fail,
}
cdef tuple ON_ESCAPE = ("retire", "warn", "error", "invalidate")


cdef object choice(choices, object value, str what):
    if value not in choices:
        raise ValueError(f"{what} is one of {', '.join(choices)}, not {value!r}")
    return value


@cython.final
@cython.no_gc_clear
cdef class WorkspaceMemory(Resource):
    """The memory of a workspace: pages of upstream, handed out cycle by cycle.

    A `memcfg.workspaces.Workspace` makes it and says when a cycle begins and ends; its
    configuration states what the arguments mean. Its blocks are the arrays that are
    alive. Outside a cycle a block is one of upstream.

    Parameters
    ----------
    upstream : Resource
        Where blocks that do not fit come from.
    name : str
        The workspace's name, for the books.
    pages : Resource or None, default None
        Where pages come from; None is upstream.
    initial_size, min_size : int, default 0
        Bytes.
    max_size : int or None, default None
        Bytes; None is no bound.
    overallocation : float, default 0
        The share of a size that is added to it.
    circular : bool, default False
        Whether it is a ring.
    ring_blocks : int, default 1
        Cycles that a learned ring has room for.
    learning : {"first_loop", "over_time", "none"}, default "first_loop"
        When it learns its size.
    learning_cycles : int, default 0
        After how many cycles, over time; 0 is when it is told.
    spill : {"external", "reallocate", "fail"}, default "external"
        What happens to what does not fit.
    on_escape : {"retire", "warn", "error", "invalidate"}, default "retire"
        What happens to arrays that outlive their cycle.
    reclaim : bool, default False
        Whether the array made last gives its space back when it goes.

    Attributes
    ----------
    label : str
        The workspace's name.
    pages : Resource
        Where pages come from.
    on_escape, spill : str
        As given.

    Raises
    ------
    ResourceExhaustedError
        If the initial size does not fit; nothing is taken.
    TypeError, ValueError
        If an argument is no such thing, or the resource is a simulated device's.
    """

    def __cinit__(
        self,
        Resource upstream not None,
        *,
        str name not None,
        Resource pages=None,
        initial_size=0,
        min_size=0,
        max_size=None,
        double overallocation=0,
        circular=False,
        ring_blocks=1,
        learning="first_loop",
        learning_cycles=0,
        spill="external",
        on_escape="retire",
        reclaim=False,
    ):
        cdef native.WorkspaceRules rules
        if not is_touchable(upstream):
            raise ValueError("arrays need memory, and a simulated device has none")
        self.upstream = upstream
        self.pages = pages if pages is not None else upstream
        self.label = name
        self.on_escape = choice(ON_ESCAPE, on_escape, "on_escape")
        self.spill = choice(SPILL, spill, "spill")
        rules.name = as_string(name)
        rules.initial = as_size(initial_size, "an initial size")
        rules.least = as_size(min_size, "a smallest size")
        rules.most = native.kNoLimit if max_size is None else as_size(max_size, "a size")
        rules.overallocation = overallocation
        rules.circular = as_flag(circular, "circular")
        rules.ring_blocks = as_size(ring_blocks, "a number of blocks")
        rules.learning = LEARNING[choice(LEARNING, learning, "learning")]
        rules.learning_cycles = as_size(learning_cycles, "a number of cycles")
        rules.spill = SPILL[spill]
        rules.overwrites = on_escape == "invalidate"
        rules.reclaims = as_flag(reclaim, "reclaim")
        self.workspace = new native.Workspace(upstream.core, self.pages.core, rules)
        self.core.reset(<native.Resource*>self.workspace)

    # For the scope, in another module. The interpreter's lock is kept throughout.
    cdef bint begin(self) except -1:
        return self.workspace.open()

    cdef int refuse(self) except -1:
        self.workspace.rethrow_refusal()
        return 0

    cdef int cancel(self) noexcept:
        self.workspace.cancel()
        return 0

    cdef native.WorkspaceEnd end(self) noexcept:
        return self.workspace.close()

    cdef int learn(self) except -1:
        self.workspace.initialize()
        return 0

    cdef int forget(self) noexcept:
        self.workspace.destroy()
        return 0

    cdef size_t shrink(self) noexcept:
        return self.workspace.shrink()

    cdef int enable(self, bint enabled) noexcept:
        self.workspace.set_enabled(enabled)
        return 0

    cdef bint enabled(self) noexcept:
        return self.workspace.enabled()

    cdef uint64_t generation(self) noexcept:
        return self.workspace.generation()

    cdef optional[native.WorkspacePlacement] place_of(
        self, const void* place, uint64_t generation
    ) noexcept:
        return self.workspace.place_of(place, generation)

    def numbers(self):
        """Read the numbers of the cycles, all of one moment.

        Returns
        -------
        dict of str to int
            The fields of `memcfg.workspaces.WorkspaceStats`.
        """
        cdef native.WorkspaceNumbers numbers = self.workspace.numbers()
        return {
            "size": numbers.size,
            "offset": numbers.offset,
            "cycle_bytes": numbers.cycle,
            "last_cycle_bytes": numbers.last_cycle,
            "max_cycle_bytes": numbers.most_cycle,
            "spilled_bytes": numbers.spilled.bytes,
            "spilled_count": numbers.spilled.blocks,
            "pinned_bytes": numbers.pinned.bytes,
            "pinned_count": numbers.pinned.blocks,
            "block_size": numbers.block,
            "cycles": numbers.cycles,
            "steps": numbers.steps,
            "generation": numbers.generation,
            "live_arrays": numbers.live,
            "escaped_arrays": numbers.escaped,
            "retired_bytes": numbers.retired,
        }


# A block for an array of a generation, with the interpreter's lock kept, as for every
# array.
cdef void* take_scoped(
    WorkspaceMemory memory, size_t size, bint zeroed, uint64_t generation
) except NULL:
    cdef native.Request request
    request.size = size if size > 0 else 1
    request.zeroed = zeroed
    return memory.workspace.allocate_of(request, generation)


# The same array with another size: elsewhere, with the bytes that both sizes have. On
# an error it is as it was.
cdef void* resize_scoped(
    WorkspaceMemory memory, void* place, size_t size, uint64_t generation
) except NULL:
    cdef optional[native.WorkspacePlacement] found
    cdef void* moved
    found = memory.workspace.place_of(place, generation)
    if not found.has_value() or found.value().kind == native.WorkspaceKind.overwritten:
        raise WorkspaceStaleError("the array's memory has been used again")
    held = found.value().size
    try:
        moved = take_scoped(memory, size, False, generation)
    except ResourceExhaustedError:
        if size > held:
            raise
        return place  # a smaller array can stay where it is
    memcpy(moved, place, min(held, size))
    memory.workspace.release_of(place, generation)
    return moved


cdef bint release_scoped(
    native.Workspace* workspace, void* place, uint64_t generation
) noexcept nogil:
    return workspace.release_of(place, generation)


def set_spill_everything(spill):
    """Choose whether everything misses the page, in all workspaces, to find faults."""
    native.spill_everything(as_flag(spill, "spill"))


def set_bypass_everything(bypass):
    """Choose whether workspaces are as if not there, to find faults."""
    native.bypass_everything(as_flag(bypass, "bypass"))
