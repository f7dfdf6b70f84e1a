"""Train GPT-2 and ResNet-50 on a CPU in half of the memory that PyTorch takes.

    python examples/29_half_of_pytorchs_memory.py gpt
    python examples/29_half_of_pytorchs_memory.py resnet50

The process has a few percent beside what the limit holds. Without a name, networks are
small, and compared with plans in which every tensor has memory of its own.
"""

import argparse

import numpy as np

import memcfg as mc

nn, models = mc.nn, mc.models
MIB = 2**20
# PyTorch 2.13.0 on a CPU, eager, scaled_dot_product_attention: the peak of its resident
# memory above the imports, weights included, in steps of SGD at these batch sizes.
PYTORCH = {"gpt": 5290 * MIB, "resnet50": 1967 * MIB}
BATCH = {"gpt": 4, "resnet50": 16}
STEPS = 2


def network(name, small):
    """Return a model, and a batch for it."""
    rng = np.random.default_rng(0)
    count = BATCH[name]
    if name == "resnet50":
        model = models.resnet(20) if small else models.resnet50()
        x = rng.random((count, *model.input_shape[1:]), np.float32)
        return model, x, rng.integers(0, 10, count)
    words, length = (200, 64) if small else (50_257, 512)
    sizes = (3, 48, 3) if small else (12, 768, 12)
    model = models.gpt(*sizes, vocabulary_size=words, sequence_length=length)
    text = rng.integers(0, words, (count, length + 1), np.int32)
    return model, text[:, :-1], text[:, 1:]


def load_libraries():
    """Train another model for a step: kernels are loaded, as imports are."""
    model = models.lenet5((20, 20, 1))
    model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
    model.train_on_batch(np.zeros((2, 20, 20, 1), np.float32), np.zeros(2, int))
    model.close()


def train(name, small):
    """Train some steps inside the limit; return what memory they took."""
    model, x, y = network(name, small)
    momentum = 0.9 if name == "resnet50" else 0.0
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=momentum), loss)
    keep_all = mc.plan.keep_all()(model.graph(len(x))).peak_bytes
    theirs = keep_all if small else PYTORCH[name]
    limit = theirs // 2
    mc.config.set_memory_limit("CPU:0", limit)
    load_libraries()
    before = mc.config.get_host_memory_info()["resident"]
    losses = [model.train_on_batch(x, y) for _ in range(STEPS)]
    taken = mc.config.get_host_memory_info()["resident"] - before
    peak = model.memory_plan.peak_bytes
    print(
        f"{name}: loss {losses[0]:.2f}, then {losses[-1]:.2f}\n"
        f"  limit          {limit / MIB:8.1f} MiB, half of {theirs / MIB:.0f}\n"
        f"  plan's peak    {peak / MIB:8.1f} MiB\n"
        f"  resident more  {taken / MIB:8.1f} MiB, {taken / peak:.3f} of the peak"
    )
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
    assert small or taken <= 1.03 * peak
    model.close()
    mc.config.set_memory_limit("CPU:0", None)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("network", nargs="?", choices=sorted(BATCH))
chosen = parser.parse_args().network
for each in BATCH if chosen is None else [chosen]:
    train(each, small=chosen is None)
