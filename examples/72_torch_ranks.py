"""Train on two processes with DDP, each within a limit, to the bits of no limit."""

import os
import sys
import tempfile

try:
    import torch
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch")

from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError
from memcfg.units import format_bytes

RANKS = 2


def network():
    """A small perceptron, the same on each rank."""
    torch.manual_seed(0)
    hidden = [each for _ in range(4) for each in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*hidden, nn.Linear(64, 1))


def train(rank, limit=None):
    """Four steps on this rank's part of the data; the losses, and the model."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    if limit is not None:  # or before the model is wrapped
        mt.budget(model, limit, optimizer=optimizer)
    torch.manual_seed(rank)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(512, 64)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model


def run(rank, store):
    """What each process does."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        store=distributed.FileStore(store, RANKS),
        rank=rank,
        world_size=RANKS,
    )
    plain, _ = train(rank)
    told = mt.estimate(network(), (torch.randn(512, 64),))
    buckets = sum(each.nbytes for each in network().parameters())
    limit = (told.floor_bytes + told.peak_bytes) // 2 + buckets
    losses, model = train(rank, limit)
    assert losses == plain

    mt.budget(model, limit if rank == 0 else 1024)  # what rank 1 cannot keep
    try:
        model(torch.randn(512, 64))
    except InfeasiblePlanError as error:
        refusal = str(error).splitlines()[0]
    if rank == 0:
        print(f"limit of each rank: {format_bytes(limit)}; losses: {losses}")
        print(f"rank 0 says: {refusal}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(run, (os.path.join(folder, "store"),), nprocs=RANKS)
