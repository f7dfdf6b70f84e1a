"""Adam, dropout and batch normalisation, with a learning rate that falls."""

import numpy as np
from sklearn.datasets import load_digits

import memcfg as mc

nn = mc.nn

digits = load_digits()
x = (digits.images[..., None] / 16).astype(np.float32)
y = digits.target
order = np.random.default_rng(0).permutation(len(x))
x, y = x[order], y[order]

nn.set_random_seed(0)
model = nn.Sequential(
    [
        nn.Conv2D(16, 3, padding="same", use_bias=False),
        nn.BatchNormalization(momentum=0.9),
        nn.ReLU(),
        nn.MaxPool2D(2),
        nn.Conv2D(32, 3, padding="same", use_bias=False),
        nn.BatchNormalization(momentum=0.9),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Dense(10),
    ]
)
model.compile(
    nn.Adam(0.003),
    nn.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
for epoch in range(5):
    model.optimizer.learning_rate = 0.003 * 0.6**epoch
    history = model.fit(
        x[:1500],
        y[:1500],
        batch_size=50,
        epochs=epoch + 1,
        initial_epoch=epoch,
        validation_data=(x[1500:], y[1500:]),
        seed=0,
    )
loss, accuracy = model.evaluate(x[1500:], y[1500:], verbose=0)
print(f"after {model.optimizer.iterations} steps: accuracy {accuracy:.3f}")
assert accuracy > 0.95
