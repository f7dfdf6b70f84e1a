"""A step of one's own: two networks with two optimizers in one planned program."""

import gc

import numpy as np

import memcfg as mc

nn, ops = mc.nn, mc.nn.ops
generator = np.random.default_rng(0)
angles = generator.uniform(0, 2 * np.pi, (4096, 1))
circle = np.hstack([np.cos(angles), np.sin(angles)]).astype(np.float32)


def networks():
    nn.set_random_seed(0)

    def network(inputs, outputs, name):
        hidden = [nn.Dense(64, activation="relu") for _ in range(2)]
        layers = [nn.Input((inputs,)), *hidden, nn.Dense(outputs)]
        return nn.Sequential(layers, name=name)

    return network(2, 2, "forger"), network(2, 1, "critic")


def logistic(logits, truth):
    return ops.mean(ops.softplus(logits) - logits * truth)


def adversarial_step(forger, critic):
    for_critic, for_forger = nn.Adam(2e-3, beta_1=0.5), nn.Adam(1e-3, beta_1=0.5)

    @mc.function
    def step(real, noise):
        with mc.GradientTape() as tape:
            loss = logistic(critic(real), 1.0) + logistic(critic(forger(noise)), 0.0)
        weights = critic.trainable_variables
        for_critic.apply(tape.gradient(loss, weights), weights)
        with mc.GradientTape() as tape:  # by the critic that has just been updated
            deceived = logistic(critic(forger(noise)), 1.0)
        weights = forger.trainable_variables
        for_forger.apply(tape.gradient(deceived, weights), weights)
        return {"critic": loss, "forger": deceived}

    return step


def train(steps):
    """Return the losses, what the forger makes, and the report of a step."""
    draws = np.random.default_rng(1)
    forger, critic = networks()
    step = adversarial_step(forger, critic)
    losses = []
    for _ in range(steps):
        real = circle[draws.integers(0, len(circle), 256)]
        noise = draws.standard_normal((256, 2)).astype(np.float32)
        losses.append(step(real, noise))
    report = step.memory_report(real, noise, verify=True)
    step.close()  # the values of weights stay
    made = forger.predict(draws.standard_normal((1000, 2)), verbose=0)
    return losses, made, report


losses, made, report = train(600)
print(losses[-1])
radius = np.linalg.norm(made, axis=1)
print(f"radius of the forgeries: {radius.mean():.2f} +- {radius.std():.2f}")
assert abs(radius.mean() - 1) < 0.25, radius.mean()

limit = report.measured_peak_bytes * 8 // 10
gc.collect()
mc.config.reset()
mc.config.set_memory_limit("CPU:0", limit)
again, _, less = train(5)
assert again == losses[:5]  # the same bits
assert less.measured_peak_bytes == less.predicted_peak_bytes <= limit
print(f"{report.measured_peak_bytes} B without a limit, {less.measured_peak_bytes} B")
