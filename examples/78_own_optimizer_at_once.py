"""Write an optimizer, try it step by step with a tape, then train within a limit.

Outside of a function each line computes at once, so that losses and gradients can be
printed. The same lines in `memcfg.function` are one planned program, with the same
optimizer and its state.
"""

import numpy as np

import memcfg as mc
from memcfg import nn

ops = nn.ops


class SignedMomentum(nn.Optimizer):
    """Step by the sign of a moving average of gradients, as Lion does (Chen 2023)."""

    def __init__(self, learning_rate=0.01, momentum=0.9, name=None):
        super().__init__(learning_rate, name=name)
        self.momentum = momentum

    def build(self, variables):
        super().build(variables)
        self.averages = [
            self.add_variable_from_reference(each, "average") for each in variables
        ]

    def update_step(self, gradient, variable, learning_rate):
        average = self.averages[self._get_variable_index(variable)]
        new = self.momentum * average + (1 - self.momentum) * gradient
        self.assign(average, new)
        self.assign_sub(variable, learning_rate * ops.sign(new))


def make_model():
    nn.set_random_seed(0)
    hidden = [nn.Dense(64, activation="tanh") for _ in range(6)]
    return nn.Sequential([nn.Input((8,)), *hidden, nn.Dense(1)])


def descend(model, optimizer, x, y):
    with mc.GradientTape() as tape:
        loss = ops.mean(ops.square(model(x, training=True) - y))
    weights = model.trainable_variables
    optimizer.apply(tape.gradient(loss, weights), weights)
    return loss


rng = np.random.default_rng(0)
x = rng.standard_normal((256, 8)).astype(np.float32)
y = np.sin(x[:, :1] * x[:, 1:2]).astype(np.float32)

model, optimizer = make_model(), SignedMomentum(0.001)
tried = [float(descend(model, optimizer, x, y)) for _ in range(3)]
print("at once:", ", ".join(f"{loss:.4f}" for loss in tried))
del model, optimizer  # which hold memory of the device


def train(limit=None):
    mc.config.set_memory_limit("CPU:0", limit)
    model, optimizer = make_model(), SignedMomentum(0.001)
    step = mc.function(lambda x, y: descend(model, optimizer, x, y))
    losses = [float(step(x, y)) for _ in range(60)]
    peak = step.memory_report(x, y).measured_peak_bytes
    step.close()
    return losses, [weight.tobytes() for weight in model.get_weights()], peak


losses, weights, peak = train()
assert np.allclose(losses[:3], tried, rtol=1e-4)
limit = peak * 9 // 10
_, same, less = train(limit)
print(f"loss {losses[0]:.3f} to {losses[-1]:.3f}; {peak:,} B, within {limit:,} B")
assert less <= limit
assert same == weights
assert losses[-1] < 0.7 * losses[0]
mc.config.set_memory_limit("CPU:0", None)
