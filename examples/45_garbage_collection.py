"""Train in small steps that Python's garbage collector does not interrupt at will."""

import gc

import numpy as np

import memcfg as mc

BATCHES = 200


class Closures(mc.nn.callbacks.Callback):
    """Leaves reference cycles behind in every batch, as closures and exceptions do."""

    def on_train_batch_end(self, batch, logs=None):
        for _ in range(200):
            cycle = []
            cycle.append(cycle)


def collections(model, x, y):
    """Count the collections that begin by themselves while a model fits."""
    begun = []
    counts = []

    def note(phase, info):
        begun.append(phase)

    class Count(Closures):
        def on_train_batch_end(self, batch, logs=None):
            super().on_train_batch_end(batch, logs)
            counts.append(begun.count("start"))

    gc.collect()
    gc.callbacks.append(note)
    model.fit(x, y, batch_size=8, verbose=0, callbacks=Count())
    gc.callbacks.remove(note)
    return counts[-1] - counts[0]


model = mc.nn.Sequential([mc.nn.Input((16,)), mc.nn.Dense(32), mc.nn.Dense(4)])
model.compile("sgd", "mse")
x = np.ones((8 * BATCHES, 16), np.float32)
y = np.ones((8 * BATCHES, 4), np.float32)

found = collections(model, x, y)
print(f"Python's own: {'many' if found > 20 else 'few'}")

mc.gc.set_auto_gc_window(60_000)  # milliseconds
found = collections(model, x, y)
print(f"one in a minute: at most one, {found <= 1}")

mc.gc.toggle_periodic_gc(False)
print(f"none: {collections(model, x, y)}, active: {mc.gc.is_periodic_gc_active()}")

mc.gc.toggle_periodic_gc(True)
mc.gc.set_auto_gc_window(None)
model.close()
