"""Train as with batches of 256 where only batches of 32 fit, and keep little beside.

Gradient accumulation changes the weights once in eight steps, by the mean gradient. It
keeps one sum beside each weight; Adam keeps two moments, Adafactor rows and columns.
"""

import numpy as np
from sklearn.datasets import load_digits

import memcfg as mc
from memcfg.errors import InfeasiblePlanError

nn = mc.nn
mc.config.set_memory_limit("CPU:0", "6MiB")
digits = load_digits()
x = (digits.images[..., None] / 16).astype("float32")
y = digits.target


def train(optimizer, batch_size):
    """Return the loss of the last epoch and the bytes that the optimizer keeps."""
    nn.set_random_seed(0)
    convolutions = [
        nn.Conv2D(32, 3, padding="same", activation="relu") for _ in range(2)
    ]
    head = [nn.Flatten(), nn.Dense(128, activation="relu"), nn.Dense(10)]
    model = nn.Sequential([nn.Input((8, 8, 1)), *convolutions, *head])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, on_oom="raise")
    history = model.fit(
        x[:1024], y[:1024], batch_size=batch_size, epochs=2, verbose=0, seed=0
    )
    kept = sum(each.nbytes for each in optimizer.variables)
    peak = model.memory_plan.peak_bytes
    model.close()
    return history.history["loss"][-1], kept, peak


try:
    train(nn.Adam(0.002), 256)
except InfeasiblePlanError as error:
    print(f"Adam, batches of 256: {error.smallest_limit_bytes / 2**20:.1f} MiB needed")

schedules = nn.optimizers.schedules
for name, optimizer in {
    "Adam": nn.Adam(0.002, gradient_accumulation_steps=8),
    "Lion": nn.Lion(0.002, gradient_accumulation_steps=8, global_clipnorm=1.0),
    "Adafactor": nn.Adafactor(
        schedules.CosineDecay(0.1, 2 * 1024 // 32), gradient_accumulation_steps=8
    ),
}.items():
    loss, kept, peak = train(optimizer, 32)
    print(
        f"{name}, 8 batches of 32: peak {peak / 2**20:.1f} MiB, of which it keeps "
        f"{kept / 2**20:.1f} MiB; loss {loss:.2f}"
    )
    assert np.isfinite(loss)
    assert optimizer.iterations == 2 * 1024 // 256
