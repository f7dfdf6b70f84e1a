"""Train a model whose step is its own: a variational autoencoder.

`Model.train_step` is traced and runs as one planned program. `add_loss` adds a term
that a layer computes, and metrics in a step are updated when it has run.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

import memcfg as mc

nn, ops, layers = mc.nn, mc.nn.ops, mc.nn.layers


class Sampling(layers.Layer):
    """Draw codes from normal distributions; their distance to N(0, 1) is a loss."""

    def call(self, inputs):
        mean, log_variance = inputs
        divergence = 1 + log_variance - ops.square(mean) - ops.exp(log_variance)
        self.add_loss(-0.05 * ops.mean(divergence))
        noise = nn.random.normal(ops.shape(mean))
        return mean + ops.exp(0.5 * log_variance) * noise


class Autoencoder(nn.Model):
    """A variational autoencoder (Kingma and Welling, arXiv:1312.6114)."""

    def __init__(self, features):
        super().__init__()
        self.hidden = layers.Dense(64, activation="relu")
        self.mean, self.log_variance = layers.Dense(2), layers.Dense(2)
        self.sampling = Sampling()
        self.decoder = nn.Sequential(
            [
                nn.Input((2,)),
                layers.Dense(64, activation="relu"),
                layers.Dense(features),
            ]
        )
        self.error = nn.metrics.Mean(name="error")

    def call(self, x):
        hidden = self.hidden(x)
        return self.decoder(
            self.sampling([self.mean(hidden), self.log_variance(hidden)])
        )

    def train_step(self, x):
        with mc.GradientTape() as tape:
            error = ops.mean(ops.square(self(x, training=True) - x))
            loss = error + sum(self.losses)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.error.update_state(error)
        return {"loss": loss, "error": self.error.result()}


def main() -> None:
    mc.config.set_memory_limit("CPU:0", "4MiB")
    nn.set_random_seed(0)
    x = (load_digits().data / 16).astype(np.float32)

    vae = Autoencoder(x.shape[1])
    vae.compile(nn.Adam(0.003))
    history = vae.fit(x, epochs=15, batch_size=128, verbose=0).history
    print(f"autoencoder: error {history['error'][0]:.3f} -> {history['error'][-1]:.3f}")
    report = vae.memory_report(verify=True)
    print(f"one program of {report.measured_peak_bytes} B, as planned:", end=" ")
    print(report.measured_peak_bytes == vae.memory_plan.peak_bytes)


if __name__ == "__main__":
    main()
