# distutils: language = c++
"""Packing and search over arrays of numbers, in C++ without the GIL.

Owns the conversion between Python sequences and the pure functions of
`pack.hpp`, `liveness.hpp`, `schedule.hpp`, `reorder.hpp`, `exact_schedule.hpp`,
`look_ahead.hpp`, `large_neighbourhood.hpp`, `recompute.hpp`, `segments.hpp`,
`rotor.hpp`, `repeated_blocks.hpp`, `lower_sets.hpp` and `time_bound.hpp`. Refuses
policy: what is tried, and what is good, `memcfg.plan` decides.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector


cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef extern from "memcfg/stop.hpp" namespace "memcfg" nogil:
    cdef struct Stop:
        cbool (*ask)(void*) noexcept nogil
        void* whom


cdef extern from "memcfg/pack.hpp" namespace "memcfg::packing" nogil:
    cdef struct Buffer:
        int64_t lower
        int64_t upper
        int64_t size

    cdef enum class Order(int32_t):
        pass

    cdef enum class Fit(int32_t):
        pass

    cdef enum class Way(int32_t):
        pass

    cdef struct Placement "memcfg::packing::Layout":
        vector[int64_t] offsets
        int64_t height

    cdef struct Packing:
        Placement layout
        int64_t bound
        int64_t floor
        Order order
        Fit fit
        Way way

    Packing pack_buffers "memcfg::packing::pack"(
        const vector[Buffer]& buffers, int64_t effort, int64_t goal, const Stop& stop
    ) except +


cdef extern from "memcfg/liveness.hpp" namespace "memcfg::liveness" nogil:
    cdef cppclass Rows:
        void add(const vector[int32_t]& row) except +

    cdef enum class Phase(uint8_t):
        pass

    cdef enum class InPlace(int32_t):
        pass

    cdef cppclass Arrays "memcfg::liveness::Step":
        vector[int64_t] bytes
        vector[uint8_t] persistent
        vector[uint8_t] keep
        vector[int32_t] producer
        Rows inputs
        Rows outputs
        Rows pairs
        vector[int64_t] scratch
        vector[Phase] phase
        vector[double] cost
        vector[uint8_t] droppable
        vector[uint8_t] repeatable

    cdef struct Instance:
        int32_t tensor
        int32_t begin
        int32_t end
        int32_t source
        int32_t taker
        cbool state

    cdef struct BufferTable:
        vector[Buffer] buffers
        vector[int32_t] buffer
        vector[int32_t] scratch_buffer
        int64_t base


cdef extern from "memcfg/schedule.hpp" namespace "memcfg::schedule" nogil:
    ctypedef vector[int32_t] Sequence "memcfg::liveness::Sequence"

    cdef enum class Kind "memcfg::schedule::Fault::Kind"(int32_t):
        pass

    cdef struct Fault:
        Kind kind
        int32_t place
        int32_t op
        int32_t tensor

    cdef struct Score:
        int64_t load
        double cost
        int32_t replayed

    cdef struct Placed:
        vector[Instance] lives
        BufferTable table
        Packing packing

    Fault find_fault(const Arrays& step, const Sequence& sequence) except +
    Score score_sequence "memcfg::schedule::score"(
        const Arrays& step, const Sequence& sequence
    ) except +
    Placed lay_out(
        const Arrays& step, const Sequence& sequence, InPlace rule, int64_t effort
    ) except +
    Placed lay_out_first_fit(
        const Arrays& step, const Sequence& sequence, InPlace rule
    ) except +


cdef extern from "memcfg/reorder.hpp" namespace "memcfg::reorder" nogil:
    cdef struct Reordered "memcfg::reorder::Result":
        Sequence sequence
        int64_t load
        int64_t floor

    Reordered reorder_sequence "memcfg::reorder::reorder"(
        const Arrays& step, const Sequence& sequence, int64_t effort, const Stop& stop
    ) except +


cdef extern from "memcfg/exact_schedule.hpp" namespace "memcfg::exact" nogil:
    cdef enum class Verdict "memcfg::exact::Verdict"(int32_t):
        pass

    cdef enum class Sharing "memcfg::exact::Sharing"(uint8_t):
        kGranted
        kAny

    cdef struct Cost "memcfg::exact::Cost":
        double cost
        int32_t again

    cdef Cost never "memcfg::exact::kNever"

    cdef struct Found:
        Verdict verdict
        Sequence sequence
        int64_t next
        Cost least
        int64_t work

    cdef struct LeastLoad:
        Sequence sequence
        int64_t load
        int64_t floor
        int64_t work

    cdef cppclass Model:
        @staticmethod
        cbool holds(const Arrays& step) except +

    Found search_cost "memcfg::exact::least_cost"(
        const Arrays& step,
        int64_t limit,
        int64_t effort,
        const Stop& stop,
        Sharing sharing,
        Cost below,
    ) except +
    LeastLoad search_load "memcfg::exact::least_load"(
        const Arrays& step,
        const Sequence& known,
        int64_t effort,
        const Stop& stop,
        Sharing sharing,
    ) except +


cdef extern from "memcfg/segments.hpp" namespace "memcfg::recompute" nogil:
    Sequence choose_sequence "memcfg::recompute::sequence"(
        const Arrays& step, vector[uint8_t]& dropped
    ) except +
    cdef cppclass Forward:
        vector[int64_t] whole

    Forward make_forward(const Arrays& step) except +
    vector[int32_t] uneven_cuts(
        const Forward& forward, int64_t budget, cbool& found
    ) except +
    vector[int32_t] budget_cuts(const Forward& forward, int64_t budget) except +
    vector[uint8_t] dropped_by(
        const Arrays& step, const Forward& forward, const vector[int32_t]& cuts
    ) except +


cdef extern from "memcfg/rotor.hpp" namespace "memcfg::rotor" nogil:
    cdef cppclass Stages "memcfg::rotor::Chain":
        vector[double] cost
        vector[int32_t] crossing
        vector[int32_t] kept
        vector[int32_t] gradient
        vector[int32_t] forward
        vector[int32_t] backward

    cdef cppclass Table:
        Table()
        Table(const Stages& chain, int32_t slots) except +
        double cost(size_t first, size_t last, size_t slots)
        int32_t choice(size_t first, size_t last, size_t slots)
        size_t stages()
        size_t slots()


cdef extern from "memcfg/repeated_blocks.hpp" namespace "memcfg::repeated_blocks" nogil:
    cdef struct BlockWay "memcfg::repeated_blocks::Way":
        int64_t kept
        int64_t need
        double cost
        double again
        double again_last

    cdef cppclass BlockKind "memcfg::repeated_blocks::Kind":
        vector[BlockWay] ways
        int64_t crossing
        int64_t forward
        int64_t passing
        int64_t gradient
        double advance

    cdef struct Part:
        int32_t depth
        int32_t begin
        int32_t length
        int32_t way

    cdef cppclass Planner:
        Planner(
            vector[BlockKind] kinds, vector[int32_t] chain, const Stop& stop
        ) except +
        vector[Part] plan(int64_t limit) except +
        int64_t most()


cdef extern from "memcfg/time_bound.hpp" namespace "memcfg::time_bound" nogil:
    double extra_cost(
        const Arrays& step, int64_t limit, int64_t effort, const Stop& stop
    ) except +


cdef extern from "memcfg/large_neighbourhood.hpp" namespace "memcfg::large_neighbourhood" nogil:
    vector[Sequence] replanned(
        const Arrays& step,
        const Sequence& start,
        int64_t limit,
        int64_t effort,
        const Stop& stop,
    ) except +


cdef extern from "memcfg/look_ahead.hpp" namespace "memcfg::look_ahead" nogil:
    vector[Sequence] descend(
        const Arrays& step,
        const Sequence& start,
        int64_t goal,
        int64_t work,
        const Stop& stop,
    ) except +
    Sequence within(
        const Arrays& step,
        const vector[Sequence]& starts,
        int64_t limit,
        int64_t work,
        const Stop& stop,
    ) except +
    vector[Sequence] cheaper(
        const Arrays& step,
        const Sequence& start,
        int64_t limit,
        int64_t work,
        const Stop& stop,
    ) except +


cdef cbool _is_over(void* whom) noexcept nogil:
    """Whether a search is over: a callable of Python says so, or raises."""
    with gil:
        asked = <list>whom
        if len(asked) > 1:
            return True
        try:
            PyErr_CheckSignals()
            return asked[0] is not None and asked[0]()
        except BaseException as error:
            asked.append(error)
            return True


cdef Stop _stop(list asked):
    """Ask the callable in a list, which holds, then, what it raised."""
    cdef Stop stop
    stop.ask = &_is_over
    stop.whom = <void*>asked
    return stop


cdef Sharing _sharing(cbool any) noexcept nogil:
    """Return which outputs lie in the buffers of inputs."""
    return Sharing.kAny if any else Sharing.kGranted


cdef int _raise(list asked) except -1:
    """Raise what was raised when a search asked."""
    if len(asked) > 1:
        raise asked[1]
    return 0


def pack(lower, upper, size, *, int64_t effort, int64_t goal, is_over):
    """Place buffers that live in [lower, upper), none higher than `goal` if it is found.

    `effort` bounds the comparisons of a climb or search; ``is_over()`` ends them.
    Gives offsets, height, live-bytes bound, a bound that a search may have raised, order
    (0 ... 5), fit (0 first, 1 best), what made it (0 an order, 1 a climb, 2 a search).
    OverflowError for numbers beyond 64 bits.
    """
    cdef vector[Buffer] buffers
    cdef Buffer buffer
    cdef Packing best
    cdef list asked = [is_over]
    cdef Stop stop = _stop(asked)
    for buffer.lower, buffer.upper, buffer.size in zip(lower, upper, size, strict=True):
        buffers.push_back(buffer)
    with nogil:
        best = pack_buffers(buffers, effort, goal, stop)
    _raise(asked)
    return (
        best.layout.offsets, best.layout.height, best.bound, best.floor,
        <int32_t>best.order, <int32_t>best.fit, <int32_t>best.way,
    )


@cython.final
cdef class Layout:
    """A place for every instance of every tensor of a schedule.

    An instance is its tensor, first step (-1: the start), last step (the number of
    steps: the end), the instance whose buffer it takes over (-1: none), whether it lives
    in the buffer of a persistent tensor, and its offset (-1 in such a buffer). `scratch`
    has offsets by step (-1: none); `height` and `bound` leave persistent tensors out.
    """

    cdef readonly list instances
    cdef readonly list scratch
    cdef readonly int64_t height
    cdef readonly int64_t bound


@cython.final
cdef class Step:
    """A training step as arrays of numbers; immutable.

    A tensor is its rounded bytes, persistent, kept, producer (-1: none). An op is its
    inputs, outputs, in-place pairs (flat: i, o, i, o), rounded scratch bytes, phase (0
    forward, 1 backward, 2 update), cost, droppable, repeatable; ops are in topological
    order. A choice has one byte an op: 1 drops its outputs until they are needed again.
    A schedule is a sequence of ops, any of which may stand in it more than once.

    `least_cost`, `least_load`, `descend`, `within`, `cheaper`, `replanned` and
    `extra_cost` ask ``is_over()`` now and then, end when it says so, and give what they
    have.
    """

    cdef Arrays arrays
    cdef Forward forward
    cdef object is_over

    def __cinit__(self, tensors, ops, *, is_over=None):
        self.is_over = is_over
        for nbytes, persistent, keep, producer in tensors:
            self.arrays.bytes.push_back(nbytes)
            self.arrays.persistent.push_back(persistent)
            self.arrays.keep.push_back(keep)
            self.arrays.producer.push_back(producer)
        cdef int32_t number
        for inputs, outputs, pairs, scratch, phase, cost, droppable, repeatable in ops:
            self.arrays.inputs.add(inputs)
            self.arrays.outputs.add(outputs)
            self.arrays.pairs.add(pairs)
            self.arrays.scratch.push_back(scratch)
            number = phase
            self.arrays.phase.push_back(<Phase>number)
            self.arrays.cost.push_back(cost)
            self.arrays.droppable.push_back(droppable)
            self.arrays.repeatable.push_back(repeatable)
        self.forward = make_forward(self.arrays)

    def score(self, bytes dropped not None):
        """Score a choice without placing it.

        Gives the bytes in use at the peak, the cost of what is computed again,
        the number of ops computed again, and the choice without what cannot be replayed.
        """
        cdef vector[uint8_t] choice = self._choice(dropped)
        cdef Score result
        with nogil:
            result = score_sequence(self.arrays, choose_sequence(self.arrays, choice))
        return result.load, result.cost, result.replayed, bytes(choice)

    def uneven_segments(self, int64_t budget):
        """Choose uneven segments that keep the least under a budget; None: none do."""
        cdef cbool found = False
        cdef vector[uint8_t] choice
        with nogil:
            choice = dropped_by(
                self.arrays, self.forward, uneven_cuts(self.forward, budget, found)
            )
        return bytes(choice) if found else None

    def budget_segments(self, int64_t budget):
        """Choose segments of about one size: Algorithm 3 of Chen et al. 2016."""
        cdef vector[uint8_t] choice
        with nogil:
            choice = dropped_by(
                self.arrays, self.forward, budget_cuts(self.forward, budget)
            )
        return bytes(choice)

    def sequence(self, bytes dropped not None):
        """Return the schedule of a choice."""
        cdef vector[uint8_t] choice = self._choice(dropped)
        return choose_sequence(self.arrays, choice)

    def fault(self, sequence):
        """Tell in words the first thing that is wrong with a schedule; None: nothing."""
        cdef Sequence ops = sequence
        cdef Fault found
        with nogil:
            found = find_fault(self.arrays, ops)
        words = _FAULTS[<int32_t>found.kind]
        return words and words.format(
            place=found.place, op=found.op, tensor=found.tensor
        )

    def measure(self, sequence):
        """Score a schedule without fault, without placing it.

        Gives the bytes in use at the peak, the cost of what is computed again, and the
        number of computations beyond the first of each op.
        """
        cdef Sequence ops = sequence
        cdef Score result
        with nogil:
            result = score_sequence(self.arrays, ops)
        return result.load, result.cost, result.replayed

    def reorder(self, sequence, *, int64_t effort):
        """Look for the order of a schedule without fault that has the lowest peak.

        Gives the schedule in that order, the bytes in use at its peak, and those that
        any order needs; `effort` bounds the numbers that are looked at. It heeds
        signals, and not ``is_over()``: without its order a plan may not fit.
        """
        cdef Sequence ops = sequence
        cdef Reordered found
        cdef list asked = [None]
        cdef Stop stop = _stop(asked)
        with nogil:
            found = reorder_sequence(self.arrays, ops, effort, stop)
        _raise(asked)
        return found.sequence, found.load, found.floor

    @property
    def is_small(self):
        """Whether all schedules can be searched."""
        return Model.holds(self.arrays)

    def least_cost(self, int64_t limit, *, int64_t effort, below=None, cbool any=False):
        """Find the schedule of a small step with the least cost within a limit.

        With `below`, a cost and a number of repetitions, only one that has less is
        looked for. Bytes are those of `measure`; with `any` they are the fewest that a
        plan of the schedule may need, so what is not found has no plan.

        Gives a verdict (0 found, 1 there is none, 2 unknown after `effort`), the
        schedule, the bytes that any needs at least if there is none, the cost that no
        schedule is below (whatever the verdict; that of `below` if there is none), and
        how many states were compared.
        """
        cdef Found found
        cdef list asked = [self.is_over]
        cdef Stop stop = _stop(asked)
        cdef Cost most = never
        if below is not None:
            most.cost, most.again = below
        with nogil:
            found = search_cost(
                self.arrays, limit, effort, stop, _sharing(any), most
            )
        _raise(asked)
        return (
            <int32_t>found.verdict, found.sequence, found.next, found.least.cost,
            found.work,
        )

    def least_load(self, sequence, *, int64_t effort, cbool any=False):
        """Find the schedule of a small step with the lowest peak, from a known one.

        Gives it, the bytes in use at its peak, those that any schedule needs at least,
        and how many states were compared; `effort` bounds the search of each limit, and
        four times that all. With `any` the bytes are those of `least_cost`, and the
        second number is the lowest limit that was found to do.
        """
        cdef Sequence ops = sequence
        cdef LeastLoad found
        cdef list asked = [self.is_over]
        cdef Stop stop = _stop(asked)
        with nogil:
            found = search_load(self.arrays, ops, effort, stop, _sharing(any))
        _raise(asked)
        return found.sequence, found.load, found.floor, found.work

    def descend(self, start, int64_t goal, *, int64_t work):
        """Find schedules that need less and less, from one without fault on.

        Each is a little lower than the one before; the last one is within a goal in
        bytes, or else needs the least that is found. `work` bounds the steps measured.
        """
        cdef Sequence first = start
        cdef vector[Sequence] found
        cdef list asked = [self.is_over]
        cdef Stop stop = _stop(asked)
        with nogil:
            found = descend(self.arrays, first, goal, work, stop)
        _raise(asked)
        return found

    def within(self, starts, int64_t limit, *, int64_t work):
        """Find a cheap schedule within a limit; None: none was found.

        It is made from `starts`, schedules without fault, which need not be within it.
        `work` bounds the steps measured.
        """
        cdef vector[Sequence] first = starts
        cdef Sequence found
        cdef list asked = [self.is_over]
        cdef Stop stop = _stop(asked)
        with nogil:
            found = within(self.arrays, first, limit, work, stop)
        _raise(asked)
        return found if found.size() or not self.arrays.phase.size() else None

    def cheaper(self, start, int64_t limit, *, int64_t work):
        """Find ever cheaper schedules within a limit, from one within it on.

        Each costs less than the one before, or as much and computes less again; empty:
        there is none. `work` bounds the steps measured.
        """
        cdef Sequence first = start
        cdef vector[Sequence] found
        cdef list asked = [self.is_over]
        cdef Stop stop = _stop(asked)
        with nogil:
            found = cheaper(self.arrays, first, limit, work, stop)
        _raise(asked)
        return found

    def replanned(self, start, int64_t limit, *, int64_t effort):
        """Find ever cheaper schedules within a limit, from one within it on.

        Parts of it are planned anew, each completely: some ops in any order, as often
        as is wanted. Each schedule costs less than the one before; empty: there is
        none. `effort` bounds the states that are compared.
        """
        cdef Sequence first = start
        cdef vector[Sequence] found
        cdef list asked = [self.is_over]
        cdef Stop stop = _stop(asked)
        with nogil:
            found = replanned(self.arrays, first, limit, effort, stop)
        _raise(asked)
        return found

    def layout(self, sequence, *, int32_t rule, int64_t effort):
        """Place every instance of a schedule without fault.

        `rule` says who may take over buffers: 0 state updates, 1 outputs of the same
        size too, 2 smaller outputs too; `effort` bounds the packer's climb.
        """
        cdef Sequence ops = sequence
        cdef Placed placed
        with nogil:
            placed = lay_out(self.arrays, ops, <InPlace>rule, effort)
        return _make_layout(placed)

    def first_fit(self, sequence, *, int32_t rule):
        """Place every instance of a schedule without fault, as it begins, lowest first.

        `rule` is as of `layout`, which finds none that is higher.
        """
        cdef Sequence ops = sequence
        cdef Placed placed
        with nogil:
            placed = lay_out_first_fit(self.arrays, ops, <InPlace>rule)
        return _make_layout(placed)

    def extra_cost(self, int64_t limit, *, int64_t effort):
        """Bound the cost of what is computed again within a limit in bytes.

        What is repeatable is computed in any order, any number of times. Infinite:
        nothing fits. `effort` bounds the work.
        """
        cdef double cost
        cdef list asked = [self.is_over]
        cdef Stop stop = _stop(asked)
        with nogil:
            cost = extra_cost(self.arrays, limit, effort, stop)
        _raise(asked)
        return cost

    cdef vector[uint8_t] _choice(self, bytes dropped) except *:
        if <size_t>len(dropped) != self.arrays.phase.size():
            raise ValueError(
                f"a choice has one byte for each of {self.arrays.phase.size()} ops, "
                f"not {len(dropped)}"
            )
        cdef vector[uint8_t] choice = dropped
        cdef size_t op
        for op in range(choice.size()):
            choice[op] = choice[op] and self.arrays.droppable[op]
        return choice


@cython.final
cdef class ChainTable:
    """The optimum of a chain for every part of it and every number of free slots.

    A stage is its cost forward and sizes in slots: what crosses to the next, what stays
    when it is kept, the gradient that its backward reads, and what is beside these while
    it runs forward and backward.
    """

    cdef Table table

    def __cinit__(self, stages, int32_t slots):
        if slots < 0:
            raise ValueError(f"a number of slots is not negative: {slots}")
        cdef Stages chain
        for cost, crossing, kept, gradient, forward, backward in stages:
            if min(crossing, kept, gradient, forward, backward) < 0:
                raise ValueError("sizes are not negative")
            chain.cost.push_back(cost)
            chain.crossing.push_back(crossing)
            chain.kept.push_back(kept)
            chain.gradient.push_back(gradient)
            chain.forward.push_back(forward)
            chain.backward.push_back(backward)
        if not 0 < chain.cost.size() < 2**15:
            raise ValueError(f"a chain of {chain.cost.size()} stages")
        with nogil:
            self.table = Table(chain, slots)

    def cost(self, size_t first, size_t last, size_t slots):
        """Return the least cost for stages first to last; infinity: there is none."""
        self._check(first, last, slots)
        return self.table.cost(first, last, slots)

    def choice(self, size_t first, size_t last, size_t slots):
        """Return what is done first: 0 keep the stage, k advance by k, -1 nothing."""
        self._check(first, last, slots)
        return self.table.choice(first, last, slots)

    cdef int _check(self, size_t first, size_t last, size_t slots) except -1:
        if not first <= last < self.table.stages() or slots > self.table.slots():
            raise IndexError(f"no stages {first} to {last} with {slots} slots")
        return 0


@cython.final
cdef class BlockChain:
    """Plans for a chain of blocks, many of which are alike.

    A kind of block is the ways to keep it, bytes that cross its end, bytes beside what
    is kept while it goes forward, bytes while it goes forward and keeps nothing, bytes
    that its backward gets of the one behind, and the cost of what crosses its end. A
    way is the bytes kept, bytes while it goes backward, the cost of what its backward
    computes again, and the cost to make what is kept, with and without what crosses.
    `most` is a limit that allows to keep all. Segments of blocks are planned at once,
    until ``is_over()``; plans have none of the others.
    """

    cdef Planner* planner

    def __cinit__(self, kinds, chain, *, is_over=None):
        cdef vector[BlockKind] made
        cdef list asked = [is_over]
        cdef Stop stop = _stop(asked)
        cdef BlockKind kind
        cdef BlockWay way
        for ways, crossing, forward, passing, gradient, advance in kinds:
            kind.crossing, kind.forward, kind.passing = crossing, forward, passing
            kind.gradient, kind.advance = gradient, advance
            kind.ways.clear()
            for way.kept, way.need, way.cost, way.again, way.again_last in ways:
                kind.ways.push_back(way)
            made.push_back(kind)
        cdef vector[int32_t] numbers = chain
        for number in chain:
            if not 0 <= number < <int32_t>made.size():
                raise ValueError(f"no kind {number}")
        with nogil:
            self.planner = new Planner(made, numbers, stop)
        _raise(asked)

    def __dealloc__(self):
        del self.planner

    @property
    def most(self):
        return self.planner.most()

    def plan(self, int64_t limit):
        """Return the parts of the cheapest plan within a limit; empty: there is none.

        A part is its depth, first block, number of blocks, and the way of a block; -1:
        it is a segment, whose parts follow with the next depth.
        """
        cdef vector[Part] parts
        with nogil:
            parts = self.planner.plan(limit)
        return [(part.depth, part.begin, part.length, part.way) for part in parts]


_FAULTS = (
    None,
    "there is no op {op}",
    "op {op} may not be computed again, at place {place}",
    "op {op} reads tensor {tensor} at place {place}, which was not computed yet",
    "op {op} reads tensor {tensor} at place {place}, after its update",
    "op {op} is an update at place {place}, before the forward phase has ended",
    "op {op} is never computed",
)


cdef Layout _make_layout(const Placed& placed):
    cdef Layout layout = Layout.__new__(Layout)
    cdef const Instance* life
    cdef size_t i
    layout.instances = []
    for i in range(placed.lives.size()):
        life = &placed.lives[i]
        layout.instances.append((
            life.tensor, life.begin, life.end, life.source, life.state,
            _offset(placed, placed.table.buffer[i]),
        ))
    layout.scratch = [
        _offset(placed, placed.table.scratch_buffer[i])
        for i in range(placed.table.scratch_buffer.size())
    ]
    layout.height = placed.packing.layout.height
    layout.bound = placed.packing.bound
    return layout


cdef int64_t _offset(const Placed& placed, int32_t buffer) noexcept:
    return placed.packing.layout.offsets[buffer] if buffer >= 0 else -1


cdef extern from "memcfg/lower_sets.hpp" namespace "memcfg::lower_sets" nogil:
    cdef cppclass Nodes:
        vector[int32_t] time
        vector[int64_t] bytes
        Rows before

    cdef cppclass Family:
        Family(const Nodes& nodes, cbool all, size_t most) except +
        cbool complete() const
        size_t size() const
        int64_t pairs() const
        int64_t whole() const
        vector[int32_t] strategy(int64_t budget, cbool longest) except +
        cbool feasible(int64_t budget) except +


@cython.final
cdef class LowerSets:
    """Lower sets of a directed acyclic graph, and the strategies over them.

    Nodes stand in topological order, each with its time in whole units, its bytes and
    the nodes that it is made from. With `exact`, all lower sets, else for each node that
    of its ancestors and itself. `complete` is false, and there is no strategy, if there
    are more than `most` sets. `pairs` counts the sets with one inside; `whole` is a
    budget of the method's model that is enough for the strategy of one segment.
    """

    cdef Family* family

    def __cinit__(self, times, sizes, before, *, cbool exact, size_t most):
        cdef Nodes nodes
        for time, nbytes, row in zip(times, sizes, before, strict=True):
            nodes.time.push_back(time)
            nodes.bytes.push_back(nbytes)
            nodes.before.add(row)
        with nogil:
            self.family = new Family(nodes, exact, most)

    def __dealloc__(self):
        del self.family

    def __len__(self):
        return self.family.size()

    @property
    def complete(self):
        return self.family.complete()

    @property
    def pairs(self):
        return self.family.pairs()

    @property
    def whole(self):
        return self.family.whole()

    def feasible(self, int64_t budget):
        """Tell whether there is a strategy under a budget."""
        cdef cbool found
        with nogil:
            found = self.family.feasible(budget)
        return found

    def strategy(self, int64_t budget, *, cbool longest):
        """Give each node its segment, in the strategy of least time; None: there is none.

        With `longest` that of most time.
        """
        cdef vector[int32_t] segments
        with nogil:
            segments = self.family.strategy(budget, longest)
        return list(segments) if segments.size() or not self.family.size() else None
