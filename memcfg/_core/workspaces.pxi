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
    """The memory of a workspace: pages of upstream, handed out cycle by cycle."""

    cdef native.Workspace* workspace
    cdef readonly str label
    cdef readonly Resource pages
    cdef readonly str on_escape
    cdef readonly str spill

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
        if not upstream.core.get().touchable():
            raise ValueError(
                "arrays need memory of the host: a GPU's is out of its reach, and a "
                "simulated device has none"
            )
        self.upstream = upstream
        self.pages = pages if pages is not None else upstream
        self.label = name
        self.on_escape = choice(ON_ESCAPE, on_escape, "on_escape")
        self.spill = choice(SPILL, spill, "spill")
        rules.name = as_string(name)
        rules.initial = as_size(initial_size, "an initial size")
        rules.minimum = as_size(min_size, "a smallest size")
        rules.maximum = native.kNoLimit if max_size is None else as_size(max_size, "a size")
        rules.overallocation = overallocation
        rules.circular = as_flag(circular, "circular")
        rules.ring_blocks = as_size(ring_blocks, "a number of blocks")
        rules.learning = LEARNING[choice(LEARNING, learning, "learning")]
        rules.learning_cycles = as_size(learning_cycles, "a number of cycles")
        rules.spill = SPILL[spill]
        rules.overwrites = on_escape == "invalidate"
        rules.reclaims = as_flag(reclaim, "reclaim")
        while True:
            try:
                self.workspace = new native.Workspace(
                    upstream.core, self.pages.core, rules
                )
                break
            except ResourceExhaustedError as error:
                if not make_room(self, error):
                    raise
        self.core.reset(<native.Resource*>self.workspace)

    def numbers(self):
        """Read the fields of `memcfg.workspaces.WorkspaceStats`, all of one moment."""
        cdef native.WorkspaceNumbers numbers = self.workspace.numbers()
        return {
            "size": numbers.size,
            "offset": numbers.offset,
            "cycle_bytes": numbers.cycle,
            "last_cycle_bytes": numbers.last_cycle,
            "max_cycle_bytes": numbers.max_cycle,
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


# A block for an array of a generation, with the GIL held, as for every array.
cdef void* take_scoped(
    WorkspaceMemory memory, size_t size, bint zeroed, uint64_t generation
) except NULL:
    cdef native.Request request
    request.size = size if size > 0 else 1
    request.zeroed = zeroed
    return memory.workspace.allocate_of(request, generation)


# The same after a failure: as often as others give memory back.
cdef void* await_scoped(
    WorkspaceMemory memory, size_t size, bint zeroed, uint64_t generation
) except NULL:
    while True:
        try:
            return take_scoped(memory, size, zeroed, generation)
        except ResourceExhaustedError as error:
            if not make_room(memory, error):
                raise


cdef void* resize_scoped_again(
    WorkspaceMemory memory, void* data, size_t size, uint64_t generation
) except NULL:
    while True:
        try:
            return resize_scoped(memory, data, size, generation)
        except ResourceExhaustedError as error:
            if not make_room(memory, error):
                raise


# The same array with another size: elsewhere, with the bytes that both sizes have. On
# an error it is as it was.
cdef void* resize_scoped(
    WorkspaceMemory memory, void* data, size_t size, uint64_t generation
) except NULL:
    cdef optional[native.WorkspaceBlockInfo] found
    cdef void* moved
    found = memory.workspace.find_block(data, generation)
    if not found.has_value() or found.value().kind == native.WorkspaceKind.overwritten:
        raise WorkspaceStaleError("the array's memory has been used again")
    held = found.value().size
    try:
        moved = take_scoped(memory, size, False, generation)
    except ResourceExhaustedError:
        if size > held:
            raise
        return data  # a smaller array can stay where it is
    memcpy(moved, data, min(held, size))
    memory.workspace.release_of(data, generation)
    return moved


def set_spill_everything(spill):
    """Choose whether everything misses the page, in all workspaces, to find faults."""
    native.spill_everything(as_flag(spill, "spill"))


def set_bypass_everything(bypass):
    """Choose whether workspaces are as if not there, to find faults."""
    native.bypass_everything(as_flag(bypass, "bypass"))
