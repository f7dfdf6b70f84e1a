"""REINFORCE: a pole is balanced on a cart (Williams 1992; Barto et al. 1983).

The score is the mean number of steps, of at most 200, in 20 runs after training.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from learning.outcome import Outcome, outcome_of, start_alike, stepper

CHANCE, WANTED = 22.0, 100.0
MOST, RUNS, UPDATES, PADDED = 200, 10, 40, 2048


def moved(state: np.ndarray, force: float) -> np.ndarray:
    """Return the state of cart and pole 0.02 seconds later."""
    _, speed, angle, turn = state
    sin, cos = np.sin(angle), np.cos(angle)
    pushed = (force + 0.05 * turn * turn * sin) / 1.1
    tilt = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - 0.1 * cos * cos / 1.1))
    gain = pushed - 0.05 * tilt * cos / 1.1
    return state + 0.02 * np.array([speed, gain, turn, tilt])


def played(weights: list[np.ndarray], generator: np.random.Generator) -> Any:
    """Play to the end; return states, actions and rewards to come."""
    first, shift, last, bias = weights
    states, actions = [], []
    state = generator.uniform(-0.05, 0.05, 4)
    while abs(state[0]) < 2.4 and abs(state[2]) < 0.21 and len(states) < MOST:
        score = np.tanh(state @ first + shift) @ last + bias
        right = generator.random() < 1 / (1 + np.exp(score[0] - score[1]))
        states.append(state)
        actions.append(int(right))
        state = moved(state, 10.0 if right else -10.0)
    left = np.arange(len(states), 0, -1)
    return states, actions, (1 - 0.99**left) / (1 - 0.99)


def train(k: Any, own: bool) -> Outcome:
    layers = [k.layers.Dense(64, activation="tanh"), k.layers.Dense(2)]
    model = k.Sequential([k.Input((4,)), *layers])
    start_alike([model])

    def loss_of(states: Any, actions: Any, gains: Any) -> Any:
        chosen = k.ops.sum(k.ops.log_softmax(model(states)) * actions, 1)
        return -k.ops.sum(chosen * gains)

    step = stepper(loss_of, model, k.optimizers.Adam(1e-2), own)
    generator = np.random.default_rng(0)
    for _ in range(UPDATES):
        weights = [np.asarray(each, np.float64) for each in model.get_weights()]
        runs = [played(weights, generator) for _ in range(RUNS)]
        states, actions, gains = (
            np.concatenate(each) for each in zip(*runs, strict=True)
        )
        gains = (gains - gains.mean()) / (gains.std() + 1e-6) / len(gains)
        data = np.zeros((PADDED, 4)), np.zeros((PADDED, 2)), np.zeros(PADDED)
        for room, values in zip(data, (states, np.eye(2)[actions], gains), strict=True):
            room[: len(values)] = values
        data = tuple(each.astype(np.float32) for each in data)
        step(*data)
    plan = step.plan(*data) if own else None
    weights = [np.asarray(each, np.float64) for each in model.get_weights()]
    score = np.mean([len(played(weights, generator)[0]) for _ in range(20)])
    return outcome_of(score, [model], plan)
