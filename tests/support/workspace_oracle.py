"""A workspace's numbers, told again in plain Python: no memory, no page, no lock.

Written from the description of ND4J's `Nd4jWorkspace` and from this project's rules
where the two differ. With ``upstream=True`` and an alignment of 16 it tells what ND4J
tells; without, what memcfg should.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workspace_rules import FullError, Made, Rules, up


@dataclass
class Oracle:
    """The state of one workspace."""

    rules: Rules
    size: int = 0
    block_size: int = 0
    offset: int = 0
    cycle_bytes: int = 0
    last_cycle_bytes: int = 0
    max_cycle_bytes: int = 0
    spilled_bytes: int = 0
    spilled_count: int = 0
    cycles: int = 0
    steps: int = 0
    generation: int = 0
    escaped_arrays: int = 0
    is_open: bool = False
    spill_everything: bool = False
    pins: list[tuple[int, int]] = field(default_factory=list)  # step, bytes
    made: list[Made] = field(default_factory=list)
    trim_step: int | None = None  # the ring is too small since that step
    wrapped: bool = False
    overallocated: bool = False
    peak: int = 0
    page: int = 1

    def __post_init__(self) -> None:
        self.take_initial_size()

    def take_initial_size(self) -> None:
        if self.rules.initial and not self.size:
            self.size = self.rules.clamped(self.rules.larger(self.rules.initial))
            self.overallocated = True

    # A cycle

    def open(self) -> None:
        self.take_initial_size()
        self.is_open = True
        self.generation += 1
        if not self.rules.circular or self.wrapped:
            self.forget_spilled()
        self.cycle_bytes = self.peak = 0
        if not self.rules.circular:
            self.offset = 0
        self.made = [made for made in self.made if made.live]

    def close(self) -> None:
        self.is_open = False
        self.count_the_cycle()
        if self.rules.upstream and self.rules.learning != "none":
            self.forget_spilled_of_the_past()
        if not self.spill_everything:
            self.learn_at_the_end()
            self.rebuild_the_ring()
        self.pins = [pin for pin in self.pins if pin[0] + 2 >= self.steps]
        self.move_on()
        self.last_cycle_bytes = self.peak
        self.cycle_bytes = self.peak = 0

    def count_the_cycle(self) -> None:
        self.cycles += 1
        rounds = (self.cycles - 1) % self.rules.ring_blocks == 0
        if self.rules.circular and self.cycles > 1 and rounds:
            self.steps += 1
        self.max_cycle_bytes = max(self.max_cycle_bytes, self.peak)
        if not self.rules.circular:
            self.escaped_arrays += sum(
                made.live and made.generation == self.generation for made in self.made
            )

    def move_on(self) -> None:
        """Go back to the front; in a ring on to the next block."""
        if not self.rules.circular:
            self.offset = 0
        elif not self.rules.upstream:
            if self.block_size:
                self.offset = min(up(self.offset, self.block_size), self.size)
        elif self.offset and self.trim_step is None:
            self.offset += max(0, self.block_size - self.peak)

    def learn_at_the_end(self) -> None:
        if self.rules.learning == "none" or not self.max_cycle_bytes:
            return
        if self.size == 0:
            if self.due():
                self.learn()
        elif self.too_small():
            self.learn()

    def rebuild_the_ring(self) -> None:
        """Make it larger when all that was pinned meanwhile may be gone."""
        if self.trim_step is not None and self.trim_step + 2 < self.steps:
            self.learn()
            self.trim_step = None
            self.renew()

    def due(self) -> bool:
        if self.rules.learning == "first_loop":
            return True
        if self.rules.upstream:
            return self.cycles == self.rules.learning_cycles
        return 0 < self.rules.learning_cycles <= self.cycles

    def too_small(self) -> bool:
        """Whether REALLOCATE lets the page of a scoped workspace grow."""
        rules = self.rules
        if rules.circular or rules.spill != "reallocate":
            return False
        if rules.upstream:  # a cycle beyond the maximum lets it stay as it is
            roomy = rules.max_size is None or self.max_cycle_bytes < rules.max_size
        else:
            roomy = rules.max_size is None or self.size < rules.max_size
        return roomy and self.size < self.max_cycle_bytes

    # The size

    def learn(self) -> None:
        size = self.rules.clamped(self.max_cycle_bytes)
        if self.rules.circular:
            size = self.learn_a_ring(size)
        elif not (self.overallocated and self.rules.upstream):
            size = self.rules.larger(size)
        self.overallocated = True
        self.size = self.rules.clamped(max(size, self.rules.min_size))

    def learn_a_ring(self, cycle: int) -> int:
        base = 8 if self.rules.upstream else self.rules.alignment
        block = int(cycle * 1.3)
        block += base - block % base
        size = block * self.rules.ring_blocks
        if self.rules.upstream:
            size = self.rules.larger(block)
        else:  # what a ring has room for, at most
            block = min(block, self.rules.clamped(max(size, self.rules.min_size)))
        self.block_size = self.max_cycle_bytes = block
        return size

    def initialize(self) -> None:
        known = self.rules.learning != "none" and self.max_cycle_bytes
        if known and self.size == 0 and not self.spill_everything:
            self.learn()

    def destroy(self) -> None:
        """Forget all; what was made so far is of before."""
        anew = Oracle(
            self.rules,
            generation=self.generation + 1,
            spill_everything=self.spill_everything,
            made=self.made,
            page=self.page + 1,
        )
        vars(self).update(vars(anew), size=0)  # the initial one comes at the next open

    def trim(self) -> None:
        """Forget cycles that were larger than the last one."""
        known = self.last_cycle_bytes and self.size and not self.rules.initial
        if self.is_open or not known:
            return
        smaller = Oracle(self.rules, max_cycle_bytes=self.last_cycle_bytes)
        smaller.learn()
        if smaller.size < self.size:
            self.size, self.block_size = smaller.size, smaller.block_size
            self.max_cycle_bytes = smaller.max_cycle_bytes
            self.renew()

    def renew(self) -> None:
        self.page += 1
        self.offset = 0

    # A request

    def allocate(self, nbytes: int) -> Made:
        size = up(nbytes, self.rules.alignment)
        pins = self.pins_it(size)
        trims = pins and self.trim_step is None and self.rules.spill == "reallocate"
        kind = "page"
        if pins or not self.enters(size if self.rules.upstream else nbytes):
            if self.fails():
                raise FullError
            kind = "pinned" if pins else "spilled"
        if trims:
            self.trim_step = self.steps
        offset = self.place(kind, size, nbytes)
        self.cycle_bytes += size
        self.peak = max(self.peak, self.cycle_bytes)
        page = self.page if kind == "page" else 0
        self.made.append(Made(kind, offset, size, self.generation, page))
        return self.made[-1]

    def fails(self) -> bool:
        """Whether it is an error; while ours is to be learned, nothing is full."""
        return self.rules.spill == "fail" and (self.rules.upstream or self.size > 0)

    def pins_it(self, size: int) -> bool:
        if not self.rules.circular or self.block_size == 0:
            return False
        over = size + self.cycle_bytes > self.block_size
        return over or self.trim_step is not None

    def enters(self, size: int) -> bool:
        """Whether so many bytes fit; behind the last ones nothing needs its place."""
        if self.spill_everything:
            return False
        start = 0 if self.rules.circular else self.offset  # a ring can begin anew
        return start + size <= self.size

    def place(self, kind: str, size: int, nbytes: int) -> int:
        if kind == "spilled":
            self.spilled_bytes += size
            self.spilled_count += 1
        if kind == "pinned":
            self.pins.append((self.steps, size))
        if kind != "page":
            return -1
        if self.offset + (size if self.rules.upstream else nbytes) > self.size:
            self.offset = 0
            self.wrapped = True
        if self.rules.circular:
            self.meet(size)
        start = self.offset
        self.offset = min(start + size, self.size)
        return start

    def meet(self, size: int) -> None:
        """Leave a ring's page to its arrays if one of them is in the way."""
        here = [made for made in self.made if made.live and made.page == self.page]
        end = self.offset + size
        hit = [made for made in here if made.offset < end and self.offset < made.end]
        past = all(made.generation < self.generation for made in hit)
        if self.rules.overwrites and past:
            for made in hit:
                made.page = 0  # nobody's
        elif hit:
            older = [made for made in here if made.generation < self.generation]
            self.escaped_arrays += len(older)
            self.page += 1

    def free(self, made: Made) -> None:
        made.live = False
        if self.rules.reclaim:
            self.recede()

    def recede(self) -> None:
        """Give the space back of the last arrays that are dead, while the cycle runs.

        In the page that of the last ones in it, in the count of bytes that of the last
        ones of all.
        """
        if not self.is_open:
            return
        this = [made for made in self.made if made.generation == self.generation]
        live = [made for made in this if made.live]
        end = max([made.end for made in live], default=0)
        self.offset = min(end, self.size)
        for place in range(len(this), 0, -1):
            if this[place - 1].live:
                break
            if not this[place - 1].counted:
                continue
            this[place - 1].counted = False
            self.cycle_bytes -= this[place - 1].size

    # The books

    def forget_spilled_of_the_past(self) -> None:
        if not self.rules.circular or self.wrapped:
            self.forget_spilled()

    def forget_spilled(self) -> None:
        self.spilled_bytes = self.spilled_count = 0
        self.wrapped = False

    def stats(self) -> dict[str, int]:
        names = (
            "size offset cycle_bytes last_cycle_bytes max_cycle_bytes spilled_bytes "
            "spilled_count block_size cycles steps generation escaped_arrays"
        )
        return {name: getattr(self, name) for name in names.split()} | {
            "pinned_bytes": sum(nbytes for _, nbytes in self.pins),
            "pinned_count": len(self.pins),
            "live_arrays": sum(made.live for made in self.made),
        }
