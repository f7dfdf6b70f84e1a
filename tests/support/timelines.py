"""What is in use during each event of a plan, from the meaning of its actions alone."""

from __future__ import annotations

from memcfg.plan import (
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    Start,
    Wait,
)


def held(graph, plan):  # noqa: C901  (one case an action)
    """List for each event the (offset, bytes) in use, ascending.

    Shares no code with the simulator.
    """
    there, coded, started, takers, found = {}, {}, {}, {}, []
    state = set(graph.persistent)

    def rounded(nbytes):
        return -(-nbytes // plan.alignment) * plan.alignment

    def note(*more):
        used = [*there.values(), *coded.values(), *started.values(), *more]
        found.append(sorted(used))

    for index, action in enumerate(plan.actions):
        match action:
            case Alloc(tensor, offset):
                there[tensor] = offset, rounded(graph.tensors[tensor].nbytes)
            case Alias(output, source) if source in state:
                state.add(output)
            case Alias(output, source):
                takers[source] = output
            case Free(tensor) if tensor in there:
                offset, _ = there.pop(tensor)
                if tensor in takers:
                    output = takers.pop(tensor)
                    there[output] = offset, rounded(graph.tensors[output].nbytes)
            case Free(tensor):
                coded.pop(tensor, None)
            case Compute(op, algorithm, offset):
                own = graph.ops[op]
                known = {each.name: each.scratch_bytes for each in own.algorithms}
                nbytes = known.get(algorithm, own.scratch_bytes)
                scratch = [] if offset is None else [(offset, rounded(nbytes))]
                if isinstance(action, Start):
                    started.update((index, each) for each in scratch)
                else:
                    note(*scratch)
            case Wait(target):
                note()
                started.pop(target, None)
            case Encode(tensor, nbytes=nbytes, offset=offset):
                coded[tensor] = offset, rounded(nbytes)
                note()
            case Decode(tensor, offset):
                there[tensor] = offset, rounded(graph.tensors[tensor].nbytes)
                note()
                del coded[tensor]
    return found


def overlaps(boxes):
    """List the pairs of boxes that have a byte and a time in common."""
    found = []
    for i, one in enumerate(boxes):
        for other in boxes[i + 1 :]:
            in_time = max(one.begin, other.begin) < min(one.end, other.end)
            low = max(one.offset, other.offset)
            high = min(one.offset + one.nbytes, other.offset + other.nbytes)
            if in_time and low < high:
                found.append((one, other))
    return found


def alive(timeline, event):
    """The boxes during an event."""
    return [box for box in timeline.boxes if box.begin <= event < box.end]
