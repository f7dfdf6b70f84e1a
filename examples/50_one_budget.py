"""One number for a program: a loader and a model share it, and nothing exceeds it."""

import threading

import numpy as np

import memcfg as mc

LIMIT = 3 * 2**19
generator = np.random.default_rng(0)
x = generator.random((4000, 64), np.float32)
y = (x.sum(axis=1) > 32).astype(np.int64)
computed = 0


def standardise(x, y):
    global computed
    computed += 1
    return (x - 0.5) * 2, y


data = mc.data.Dataset.from_tensor_slices((x, y)).map(standardise)
data = data.cache().shuffle(500, seed=1).batch(32).prefetch(8)

with mc.budget(LIMIT) as budget:
    pool = mc.config.logical_device("CPU:0").pool
    most, ended = 0, threading.Event()

    def watch():
        global most
        while not ended.wait(0.001):
            most = max(most, pool.stats().current_bytes)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for width in (64, 1024):  # the second model needs some of the cache's memory
        model = mc.nn.Sequential(
            [mc.nn.Input((64,)), mc.nn.Dense(width, "relu"), mc.nn.Dense(2)]
        )
        model.compile("sgd", mc.nn.SparseCategoricalCrossentropy(from_logits=True))
        for epoch in (1, 2):
            computed = 0
            model.fit(data, verbose=0)
            print(f"width {width}, epoch {epoch}: {computed} elements computed, held:")
            print("   ", {k: f"{v >> 10} KiB" for k, v in pool.owners().items()})
        model.close()
    ended.set()
    watcher.join()

print(f"at most {most >> 10} of {LIMIT >> 10} KiB were in use")
assert most <= LIMIT
