"""Train models whose step is their own: a variational autoencoder and a distillation.

`Model.train_step` is traced like a function and runs as one planned program under the
device's limit. `add_loss` adds a term that a layer computes, `nn.random` draws by the
number of the step, and metrics in a step are updated when it has run.
"""

from __future__ import annotations

import numpy as np

import memcfg as mc

nn, ops, layers = mc.nn, mc.nn.ops, mc.nn.layers


class Sampling(layers.Layer):
    """Draw codes from normal distributions; their distance to N(0, 1) is a loss."""

    def call(self, inputs):
        """Return a code of each sample."""
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
        """Return the reconstruction."""
        hidden = self.hidden(x)
        return self.decoder(
            self.sampling([self.mean(hidden), self.log_variance(hidden)])
        )

    def train_step(self, x):
        """Minimise the error of the reconstruction and what layers add."""
        with mc.GradientTape() as tape:
            error = ops.mean(ops.square(self(x, training=True) - x))
            loss = error + sum(self.losses)
        weights = self.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        self.error.update_state(error)
        return {"loss": loss, "error": self.error.result()}


class Distiller(nn.Model):
    """A small network that learns what a larger one answers (arXiv:1503.02531)."""

    def __init__(self, teacher, student, temperature=3.0):
        super().__init__()
        self.teacher, self.student, self.temperature = teacher, student, temperature

    def call(self, x):
        """Return the logits of the student."""
        return self.student(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, **options):
        """Add the distance to the soft answers of the teacher to the loss."""
        loss = super().compute_loss(x, y, y_pred, sample_weight, **options)
        soft = ops.softmax(ops.stop_gradient(self.teacher(x)) / self.temperature)
        distance = soft * ops.log_softmax(y_pred / self.temperature)
        return 0.3 * loss - 0.7 * self.temperature**2 * ops.mean(ops.sum(distance, -1))


def digits():
    """Return images of digits with their labels."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images / 16).astype(np.float32), labels


def main() -> None:
    """Train both."""
    mc.config.set_memory_limit("CPU:0", "4MiB")
    nn.set_random_seed(0)
    x, y = digits()

    vae = Autoencoder(x.shape[1])
    vae.compile(nn.Adam(0.003))
    history = vae.fit(x, epochs=15, batch_size=128, verbose=0).history
    print(f"autoencoder: error {history['error'][0]:.3f} -> {history['error'][-1]:.3f}")
    report = vae.memory_report(verify=True)
    print(f"one program of {report.measured_peak_bytes} B, as planned:", end=" ")
    print(report.measured_peak_bytes == vae.memory_plan.peak_bytes)

    teacher = nn.Sequential(
        [nn.Input((64,)), layers.Dense(128, activation="relu"), layers.Dense(10)]
    )
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    teacher.compile("adam", loss, metrics=["accuracy"])
    teacher.fit(x[:1400], y[:1400], epochs=10, verbose=0)
    student = nn.Sequential(
        [nn.Input((64,)), layers.Dense(12, activation="relu"), layers.Dense(10)]
    )
    teacher.trainable = False
    distiller = Distiller(teacher, student)
    distiller.compile(nn.Adam(0.01), loss, metrics=["accuracy"])
    distiller.fit(x[:1400], y[:1400], epochs=10, verbose=0)
    for name, model in {"teacher": teacher, "student": distiller}.items():
        logs = model.evaluate(x[1400:], y[1400:], verbose=0, return_dict=True)
        print(f"{name}: accuracy {logs['accuracy']:.2f}")


if __name__ == "__main__":
    main()
