"""Register an op of one's own: a line of Python, compiled by nobody, planned like all.

Its gradient, its cost and what may lie in place are derived from the line. Under a
limit with recomputation it is replayed as any other op, with the same bits.
"""

import numpy as np

import memcfg as mc
from memcfg import ops

# 0.5 x (1 + erf(x / sqrt 2)) is the GELU of Hendrycks and Gimpel.
ops.elementwise("gelu", lambda x: 0.5 * x * (1 + ops.erf(x * 0.5**0.5)))


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
        y = mc.nn.Dense(128, activation="gelu")(y)
        y = mc.nn.LayerNormalization()(y)
    y = Gate()([y, mc.nn.Dense(128)(x)])
    return mc.nn.Model(x, mc.nn.Dense(4)(mc.nn.Concatenate()([y, x])))


generator = np.random.default_rng(1)
(cpu,) = mc.config.list_physical_devices("CPU")
limit = mc.config.LogicalDeviceConfiguration(memory_limit=9)  # MiB
mc.config.set_logical_device_configuration(cpu, [limit])
x = generator.normal(size=(512, 64)).astype(np.float32)
y = (x[:, :4] ** 2).argmax(axis=1)

histories, peaks = {}, {}
for policy in (mc.plan.keep_all(), mc.plan.sqrt_checkpoint(), mc.plan.auto()):
    model = make_model()
    model.compile(
        mc.nn.Adam(0.002),
        mc.nn.SparseCategoricalCrossentropy(from_logits=True),
        memory=policy,
    )
    history = model.fit(x, y, batch_size=256, epochs=5, seed=0, verbose=0)
    name = model.memory_plan.method
    histories[name] = history.history["loss"]
    peaks[name] = model.memory_plan.peak_bytes
    print(f"{name:16} {peaks[name]:9,} bytes, loss {histories[name][-1]:.6f}")
    model.close()

kept, checkpointed, _ = peaks.values()
assert checkpointed < kept
assert len({tuple(values) for values in histories.values()}) == 1, "other bits"
