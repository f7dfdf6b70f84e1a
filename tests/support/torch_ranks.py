"""Two processes of gloo that train one model, and what tests ask of them."""

from __future__ import annotations

import gc
import os
import traceback
import warnings
from contextlib import nullcontext
from multiprocessing import get_context

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

RANKS = 2
TIMEOUT = 120  # seconds to wait for an answer: none hangs


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 63), nn.Linear(63, width)

    def forward(self, x):
        return x + self.narrow(nn.functional.gelu(self.wide(x)).sin())


class Net(nn.Module):
    """Blocks, a buffer that each step changes, and a layer that few steps use."""

    def __init__(self, width=64, blocks=2):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.norm, self.head = nn.BatchNorm1d(width), nn.Linear(width, 1)
        self.rarely = nn.Linear(width, 1)

    def forward(self, x, rarely=False):
        x = self.norm(self.blocks(x))
        return self.rarely(x) if rarely else self.head(x)


class AllUsed(Net):
    """A network without the layer that few steps use."""

    def __init__(self):
        super().__init__()
        del self.rarely


def network(kind=AllUsed):
    torch.manual_seed(0)
    return kind()


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1, foreach=False)


def adam(model):
    return torch.optim.Adam(model.parameters(), foreach=False)


def values_of(model):
    """The weights and buffers that this rank has."""
    return [
        getattr(each, "_local_tensor", each).detach().clone()
        for each in (*model.parameters(), *model.buffers())
    ]


def batch(rank, step):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(256, 64, generator=generator)


def trained(call, optimizer, rank, steps=3, **options):
    """The losses of some steps, and the most bytes in use in each."""
    losses, peaks, marks = [], [], []

    def mark(*_):  # threads of gloo have peaks of their own, which add up
        marks.append(mt.get_memory_info()["peak"])
        mt.reset_memory_stats()

    handle = getattr(call, "module", call).register_forward_pre_hook(mark)
    budget = vars(call).get("forward")
    if budget is not None:  # units inside are gathered after the hooks
        step_of = budget._step
        budget._step = lambda *args: mark() or step_of(*args)
    for step in range(steps):
        x = batch(rank, step)
        gc.collect()
        mt.reset_memory_stats()
        loss = call(x, **options).square().mean()
        loss.backward()
        losses.append(loss.item())
        del loss
        mark()
        optimizer.step()
        optimizer.zero_grad()
        mark()
        peaks.append(max(marks))
        marks.clear()
    handle.remove()
    return losses, peaks


def limit_of(model, optimizer, share=0.3):
    """A limit between the least that a plan needs and what it takes without one."""
    told = mt.estimate(model, (batch(0, 0),), optimizer=optimizer)
    return int(told.floor_bytes + share * (told.peak_bytes - told.floor_bytes))


def data_parallel(rank, order, kind, **options):
    """Steps with and without a budget, of a model in a DistributedDataParallel."""
    start = mt.get_memory_info()["current"]
    model = network(kind)
    plain = DistributedDataParallel(model, **options)
    wanted, eager = trained(plain, adam(plain), rank)
    weights = values_of(plain)
    del plain, model
    gc.collect()
    start = mt.get_memory_info()["current"]
    model = network(kind)
    buckets = sum(each.nbytes for each in model.parameters())
    limit = limit_of(model, adam(model)) + buckets
    if order == "budget in DDP":
        optimizer = adam(model)
        mt.budget(model, limit, optimizer=optimizer)
        call = DistributedDataParallel(model, **options)
    else:
        call = DistributedDataParallel(model, **options)
        optimizer = adam(call)
        assert mt.budget(call, limit, optimizer=optimizer) is call
    found, peaks = trained(call, optimizer, rank)
    budget = mt.get_budget(call)
    return {
        "same": found == wanted and all(map(torch.equal, weights, values_of(call))),
        "limit": limit,
        "predicted": budget.predicted_peak_bytes,
        "peak": max(peaks) - start,
        "eager": max(eager) - start,
        "report": budget.memory_report(),
    }


def sharded(model, nested):
    """Shard a model by FSDP2, with or without a unit for each block."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    for block in model.blocks if nested else ():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fully_sharded(rank, order, nested):
    """Steps with and without a budget, of a model that FSDP2 shards."""
    first = order == "budget, then fully_shard"
    stepper = sgd if first else adam  # the first has no state, which is not told
    model = sharded(network(), nested)
    wanted, _ = trained(model, stepper(model), rank)
    weights = values_of(model)
    del model
    model = network()
    limit = limit_of(model, stepper(model))
    limit += sum(each.nbytes for each in model.parameters())  # two shards are beside
    del model
    gc.collect()
    start = mt.get_memory_info()["current"]
    model = network()
    if first:
        mt.budget(model, limit)
        sharded(model, nested)
        optimizer = stepper(model)
    else:
        sharded(model, nested)
        optimizer = stepper(model)
        mt.budget(model, limit, optimizer=optimizer)
    found, peaks = trained(model, optimizer, rank)
    budget = mt.get_budget(model)
    return {
        "same": found == wanted and all(map(torch.equal, weights, values_of(model))),
        "limit": limit,
        "predicted": budget.predicted_peak_bytes,
        "peak": max(peaks) - start,
        "report": budget.memory_report(),
    }


def refused_by_one(rank, wrap):
    """A step that the limit of one rank has no room for, and the next one."""
    model = network()
    call = sharded(model, True) if wrap == "FSDP" else DistributedDataParallel(model)
    before = values_of(call)
    mt.budget(call, 64 if rank == 1 else "1GiB", times="nominal")
    try:
        call(batch(rank, 0))
    except InfeasiblePlanError as error:
        words, smallest = str(error), error.smallest_limit_bytes
    as_before = all(map(torch.equal, before, values_of(call)))
    mt.budget(call, smallest, times="nominal")
    loss = call(batch(rank, 0)).square().mean()
    loss.backward()
    own = [each.grad is not None for each in call.parameters()]
    return {"words": words, "as before": as_before, "next": all(own)}


def refused_in_no_sync(rank):
    """A pass without a reduction that one rank refuses, and one that all reduce."""
    call = DistributedDataParallel(network())
    mt.budget(call, 64 if rank == 1 else "1GiB", times="nominal")
    refused = False
    with call.no_sync():
        try:
            call(batch(rank, 0)).square().mean().backward()
        except InfeasiblePlanError:
            refused = True
    mt.budget(call, "1GiB", times="nominal")
    call(batch(rank, 1)).square().mean().backward()
    return refused, [each.grad.tolist() for each in call.parameters()]


def broken_by_one(rank):
    """A step that one rank cannot trace: whether it is a ValueError, and its words."""

    class Breaks(AllUsed):
        def forward(self, x):
            if rank == 0 and x.sum() > 0:
                x = x + 1
            return super().forward(x)

    call = DistributedDataParallel(network(Breaks))
    mt.budget(call, "1GiB", times="nominal")
    try:
        call(batch(rank, 0))
    except (RuntimeError, ValueError) as error:
        return isinstance(error, ValueError), str(error)


def accumulated(rank, view, joined):
    """Steps of two passes, the first in `no_sync`; ranks may have fewer batches."""
    found = []
    for budgeted in (False, True):
        model = network()
        options = {"gradient_as_bucket_view": view}
        call = DistributedDataParallel(model, **options)
        if budgeted:
            mt.budget(call, "1GiB", times="nominal")
        optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
        join = distributed.algorithms.join.Join if joined else None
        with nullcontext() if join is None else join([call]):
            for step in range(3 - (rank if joined else 0)):
                with nullcontext() if joined else call.no_sync():
                    loss = call(batch(rank, 2 * step)).square().mean()
                    loss.backward()
                if not joined:
                    loss = call(batch(rank, 2 * step + 1)).square().mean()
                    loss.backward()
                losses.append(loss.item())
                optimizer.step()
                optimizer.zero_grad(set_to_none=step == 0)
        found.append((losses, values_of(model)))
    (wanted, weights), (losses, others) = found
    return losses == wanted and all(map(torch.equal, weights, others))


def fully_sharded_accumulated(rank):
    """Steps of two passes, the first without a reduction of gradients."""
    found = []
    for budgeted in (False, True):
        model = sharded(network(), True)
        if budgeted:
            mt.budget(model, "1GiB", times="nominal")
        optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
        for step in range(4):
            model.set_requires_gradient_sync(step % 2 == 1)
            loss = model(batch(rank, step)).square().mean()
            loss.backward()
            losses.append(loss.item())
            if step % 2:
                optimizer.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            losses.append(model(batch(rank, 9)).square().mean().item())
        found.append((losses, values_of(model)))
    (wanted, weights), (losses, others) = found
    return losses == wanted and all(map(torch.equal, weights, others))


def measured(rank, folder):
    """The seconds of each op of a plan, where each rank has measured its own."""
    os.environ["MEMCFG_TORCH_COSTS"] = os.path.join(folder, str(rank))
    call = DistributedDataParallel(network())
    mt.budget(call, "1GiB", example=(batch(0, 0),))
    step = call.module.forward._shared.last
    return [op.seconds for op in step.traced.graph.ops]


def told_of(rank, what):
    """The error of a combination that does not work."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel.distributed import _MixedPrecision

    model = network()
    if what == "a part":
        fully_shard(model.blocks[0])
    elif what == "precision":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        fully_shard(model.blocks[0], mp_policy=policy)
        fully_shard(model)
    call = model
    if what == "precision of DDP":
        policy = _MixedPrecision(param_dtype=torch.bfloat16)
        call = DistributedDataParallel(model)
        call.mixed_precision = policy
    try:
        mt.budget(call, "1GiB", times="nominal")(batch(rank, 0))
    except ValueError as error:
        return str(error)


def _work(rank, store, pipe):
    """Answer what the test asks, until it asks for nothing."""
    os.environ["MEMCFG_TORCH_COSTS"] = f"{store}_costs{rank}"
    warnings.simplefilter("ignore")  # PyTorch's own, of its internals
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(store, RANKS),
        rank=rank,
        world_size=RANKS,
    )
    mt.limit_cpu("2GiB", tag_modules=False)
    while (asked := pipe.recv()) is not None:
        function, args, kwargs = asked
        torch._dynamo.reset()
        gc.collect()
        try:
            pipe.send((function(rank, *args, **kwargs), None))
        except BaseException:
            pipe.send((None, traceback.format_exc()))
    distributed.destroy_process_group()


class Ranks:
    """The two processes."""

    def __init__(self, store):
        context = get_context("spawn")
        ends = [context.Pipe() for _ in range(RANKS)]
        self.pipes = [here for here, _ in ends]
        self.processes = [
            context.Process(target=_work, args=(rank, store, there), daemon=True)
            for rank, (_, there) in enumerate(ends)
        ]
        for each in self.processes:
            each.start()

    def ask(self, function, *args, **kwargs):
        """What a function returns on each rank."""
        for pipe in self.pipes:
            pipe.send((function, args, kwargs))
        answers = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(TIMEOUT):
                raise TimeoutError(f"rank {rank} hangs in {function.__name__}")
            answers.append(pipe.recv())
        failed = [trace for _, trace in answers if trace is not None]
        assert not failed, "\n".join(failed)
        return [answer for answer, _ in answers]

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for each in self.processes:
            each.join(TIMEOUT)
            each.kill()
