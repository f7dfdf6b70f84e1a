"""What PyTorch's allocator gives out while something runs, by its events."""

from __future__ import annotations

import gc

from torch.profiler import ProfilerActivity, profile


def rounded(nbytes):
    return -(-nbytes // 64) * 64


def allocated_peak(run):
    """The most bytes that PyTorch's allocator of the CPU has given out at a time."""
    gc.collect()  # what goes meanwhile would count as less
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run()
    events = seen.profiler.kineto_results.events()
    memory = [e for e in events if e.name() == "[memory]"]
    now = top = 0
    for event in sorted(memory, key=lambda each: each.start_ns()):
        size = event.nbytes()
        now += rounded(size) if size > 0 else -rounded(-size)
        top = max(top, now)
    return top


def pool_peak(module, x, step):
    """The bytes of a step under `limit_cpu`: the state, the input, what is added."""
    import memcfg.torch as mt

    for each in module.parameters():
        each.grad = None
    gc.collect()
    before = mt.get_memory_info()["current"]
    mt.reset_memory_stats()
    step()
    added = mt.get_memory_info()["peak"] - before
    tensors = (*module.parameters(), *module.buffers(), x)
    return added + sum(rounded(each.untyped_storage().nbytes()) for each in tensors)
