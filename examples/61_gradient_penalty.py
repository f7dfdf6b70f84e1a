"""Train a critic with a penalty on its gradient, in three quarters of the memory.

The penalty is that of WGAN-GP (Gulrajani et al. 2017): the slope of the critic at
points between real and generated samples should have length 1. Its gradient by the
weights is a gradient of a gradient, planned with all else as one program.
"""

import numpy as np

import memcfg as mc
from memcfg import nn

ops = nn.ops


def make_critic():
    nn.set_random_seed(3)
    hidden = [nn.Conv2D(8, 3, 1, "same", activation="softplus") for _ in range(4)]
    return nn.Sequential([nn.Input((12, 12, 1)), *hidden, nn.Flatten(), nn.Dense(1)])


def make_step(critic):
    optimizer = nn.Adam(1e-3, beta_1=0.0, beta_2=0.9)

    @mc.function
    def step(real, fake, share):
        with mc.GradientTape() as tape:
            between = real * share + fake * (1.0 - share)
            with mc.GradientTape() as inner:
                score = critic(between)
            slope = inner.gradient(score, between)
            length = ops.sqrt(ops.sum(ops.square(slope), axis=(1, 2, 3)) + 1e-12)
            penalty = ops.mean(ops.square(length - 1.0))
            difference = ops.mean(critic(fake)) - ops.mean(critic(real))
            loss = difference + 10.0 * penalty
        weights = critic.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return difference, penalty

    return step


def train(limit=None):
    mc.config.set_memory_limit("CPU:0", limit)
    step, generator = make_step(critic := make_critic()), np.random.default_rng(0)
    for _ in range(20):
        real = generator.normal(0.5, 0.2, (32, 12, 12, 1)).astype(np.float32)
        fake = generator.normal(0.0, 0.2, (32, 12, 12, 1)).astype(np.float32)
        share = generator.random((32, 1, 1, 1), np.float32)
        result = step(real, fake, share)
    peak = step.memory_report(real, fake, share).measured_peak_bytes
    weights = [weight.tobytes() for weight in critic.get_weights()]
    step.close()
    return result, peak, weights


(difference, penalty), peak, weights = train()
print(f"real above fake by {-difference:.2f}, penalty {penalty:.3f}, {peak:,} B")
limit = peak * 3 // 4
_, less, same = train(limit)
print(f"within {limit:,} B: {less:,} B, the same bits: {same == weights}")
assert less <= limit
assert same == weights
assert difference < -1
mc.config.set_memory_limit("CPU:0", None)
