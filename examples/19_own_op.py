"""Register an op of one's own: a line of Python, compiled by nobody, planned like all.

Its gradient, its cost and what may lie in place are derived from the line. Under a
limit with recomputation it is replayed as any other op, with the same bits.
"""

from collections import Counter

import numpy as np

import memcfg as mc
from memcfg import ops
from memcfg.plan import Compute

# 0.5 x (1 + erf(x / sqrt 2)) is the GELU of Hendrycks and Gimpel.
ops.elementwise("own_gelu", lambda x: 0.5 * x * (1 + ops.erf(x * 0.5**0.5)))


class Gate(mc.nn.Layer):
    """Multiply a tensor by the sigmoid of another."""

    arity = 2

    def trace(self, scope, inputs):
        (gate,) = scope.apply("sigmoid", inputs[1:])
        return scope.apply("multiply", (inputs[0], gate))[0]


def make_model():
    mc.nn.set_random_seed(0)
    x = mc.nn.Input((64,))
    y = x
    for _ in range(6):
        y = mc.nn.Dense(128, activation="own_gelu")(y)
        y = mc.nn.LayerNormalization()(y)
    y = Gate()([y, mc.nn.Dense(128)(x)])
    return mc.nn.Model(x, mc.nn.Dense(4)(mc.nn.Concatenate()([y, x])))


generator = np.random.default_rng(1)
x = generator.normal(size=(512, 64)).astype(np.float32)
y = (x[:, :4] ** 2).argmax(axis=1)

histories, plans = [], []
for limit in ("9MiB", "3900KiB", "3500KiB"):
    mc.config.set_memory_limit("/device:CPU:0", limit)
    model = make_model()
    model.compile(
        mc.nn.Adam(0.002), mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    )
    history = model.fit(x, y, batch_size=256, epochs=5, seed=0, verbose=0)
    histories.append(history.history["loss"])
    plans.append(model.memory_plan)
    model.close()
    computed = Counter(a.op for a in plans[-1].actions if isinstance(a, Compute))
    replayed = sum(count > 1 for count in computed.values())
    print(
        f"{limit:>7}: {plans[-1].peak_bytes:,} bytes, {replayed} ops replayed, "
        f"loss {histories[-1][-1]:.6f}"
    )

assert replayed > 0
assert histories[0] == histories[1] == histories[2], "other bits"
