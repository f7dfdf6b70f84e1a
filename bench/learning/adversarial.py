"""A GAN: a forger learns to place points on a circle (Goodfellow et al. 2014).

The score is the mean distance of forged points from the circle.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from learning.outcome import Outcome, outcome_of, start_alike

CHANCE, WANTED = 0.7, 0.3
BATCH, UPDATES = 256, 600


def stepper(k: Any, forger: Any, critic: Any, own: bool) -> Any:
    for_critic = k.optimizers.Adam(2e-3, beta_1=0.5)
    for_forger = k.optimizers.Adam(1e-3, beta_1=0.5)

    def logistic(logits: Any, truth: float) -> Any:
        return k.ops.mean(k.ops.softplus(logits) - logits * truth)

    def of_critic(real: Any, noise: Any) -> Any:
        return logistic(critic(real), 1.0) + logistic(critic(forger(noise)), 0.0)

    if own:
        import memcfg as mc

        @mc.function
        def step(real: Any, noise: Any) -> Any:
            with mc.GradientTape() as tape:
                loss = of_critic(real, noise)
            weights = critic.trainable_variables
            for_critic.apply(tape.gradient(loss, weights), weights)
            with mc.GradientTape() as tape:
                deceived = logistic(critic(forger(noise)), 1.0)
            weights = forger.trainable_variables
            for_forger.apply(tape.gradient(deceived, weights), weights)
            return loss

        return step

    def train_step(real: Any, noise: Any) -> Any:
        for loss_of, model, optimizer in (
            (lambda: of_critic(real, noise), critic, for_critic),
            (lambda: logistic(critic(forger(noise)), 1.0), forger, for_forger),
        ):
            model.zero_grad()
            loss_of().backward()
            weights = model.trainable_variables
            optimizer.apply([each.value.grad for each in weights], weights)

    return train_step


def train(k: Any, own: bool) -> Outcome:
    def network(outputs: int) -> Any:
        hidden = [k.layers.Dense(64, activation="relu") for _ in range(2)]
        return k.Sequential([k.Input((2,)), *hidden, k.layers.Dense(outputs)])

    forger, critic = network(2), network(1)
    start_alike([forger, critic])
    step = stepper(k, forger, critic, own)
    generator = np.random.default_rng(0)
    for _ in range(UPDATES):
        angle = generator.uniform(0, 2 * np.pi, BATCH)
        real = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)
        noise = generator.standard_normal((BATCH, 2)).astype(np.float32)
        step(real, noise)
    plan = None
    if own:
        plan = step.plan(real, noise)
        step.close()
    made = forger.predict(generator.standard_normal((1000, 2)), verbose=0)
    score = np.abs(np.linalg.norm(made, axis=1) - 1).mean()
    return outcome_of(score, [forger, critic], plan)
