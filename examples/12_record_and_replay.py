"""Record who takes what in a program, then ask what another allocator makes of it."""

import tempfile
from pathlib import Path

import numpy as np

from memcfg import memory

KIB = 2**10
MIB = 2**20

# A program whose blocks come and go: training steps with a growing batch. Activations
# live until the backward pass has used them, scratch for one layer only.
tracked = memory.tracking(memory.Pool(), stacks=True)


def layer(batch: int, width: int) -> memory.Block:
    """Take an activation, and scratch that goes before the next layer."""
    activation = tracked.allocate(batch * width * KIB, tag="activation")
    tracked.allocate(width * 9 * KIB, tag="scratch", lifetime="short").free()
    return activation


def step(batch: int) -> None:
    """Go forward through forty layers, and back."""
    activations = [layer(batch, 16 + number % 5 * 8) for number in range(40)]
    while activations:
        activations.pop().free()
        tracked.allocate(200 * KIB, tag="gradient").free()


weights = [tracked.allocate(MIB, tag="weights", lifetime="long") for _ in range(8)]
for batch in range(8, 33, 4):
    step(batch)

print("Held at the end, the largest first:")
print(tracked.leaks(top=3))
trace = tracked.trace()
print(trace)
takes = trace.action == 0
for number, tag in enumerate(trace.tags):
    sizes = trace.nbytes[takes & (trace.tag == number)]
    print(
        f"  {tag:12} {len(sizes):5} blocks, {int(np.median(sizes)) / KIB:6.0f} KiB each"
    )

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "log.csv")
    trace.to_csv(path)  # RMM's REPLAY_BENCH reads this file
    print(path.read_text().splitlines()[1])
    read = memory.Trace.from_csv(path)
assert (read.nbytes == trace.nbytes).all()

# The same requests, in the same order, into other allocators.
reports = {
    "a pool": memory.replay(trace, memory.Pool(), repeats=5),
    "the C library": memory.replay(trace, memory.system(), repeats=5),
    "48 MiB, simulated": memory.replay(
        trace, memory.Pool(memory.simulated("16GiB"), limit="48MiB"), repeats=5
    ),
}
print(f"{'':22}" + "".join(f"{name:>19}" for name in reports))
for label, figure in {
    "operations": lambda run: f"{run.operations:,}",
    "failures": lambda run: f"{run.failures:,}",
    "first failure, row": lambda run: (
        "-" if run.first_failure is None else f"{run.first_failure:,}"
    ),
    "ns, half of them": lambda run: f"{run.p50_ns:,}",
    "ns, 99 % of them": lambda run: f"{run.p99_ns:,}",
    "peak requested, MiB": lambda run: f"{run.peak_requested_bytes / MIB:.1f}",
    "peak reserved, MiB": lambda run: f"{run.peak_reserved_bytes / MIB:.1f}",
    "requested / reserved": lambda run: f"{run.requested_per_reserved:.3f}",
}.items():
    cells = [figure(report.median) for report in reports.values()]
    print(f"{label:22}" + "".join(f"{cell:>19}" for cell in cells))
assert reports["a pool"].median.failures == 0
assert reports["48 MiB, simulated"].median.failures > 0
