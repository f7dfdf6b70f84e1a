"""Keep what waits for the backward phase encoded, as Gist does.

The same network three times, from the same weights: with every map as it is; with
sparse maps encoded, which loses no bit; and with all maps in 8 bits a number, which
rounds gradients and leaves the forward phase alone.
"""

import numpy as np

import memcfg as mc

nn, planning = mc.nn, mc.plan
BATCH, SIDE, CLASSES, STEPS = 16, 32, 4, 12

# Images with a bright patch in one of four corners, in noise.
generator = np.random.default_rng(0)
labels = generator.integers(0, CLASSES, STEPS * BATCH)
images = generator.normal(size=(len(labels), SIDE, SIDE, 3)).astype(np.float32)
for image, label in zip(images, labels, strict=True):
    row, column = (SIDE // 2 * part for part in divmod(int(label), 2))
    image[row : row + SIDE // 2, column : column + SIDE // 2] += 0.8


def network():
    nn.set_random_seed(0)
    layers = []
    for filters in (16, 16, 16, 16, 16, 16):
        layers += [nn.Conv2D(filters, 3, padding="same"), nn.BatchNormalization()]
        layers += [nn.ReLU()]
    ends = [nn.GlobalAveragePooling2D(), nn.Dense(CLASSES)]
    return nn.Sequential([nn.Input((SIDE, SIDE, 3)), *layers, *ends])


def train(memory):
    """Train an epoch; return the plan, the report, the losses and the weights."""
    model = network()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.02, momentum=0.9), loss, memory=memory)
    losses = [
        float(model.train_on_batch(images[at : at + BATCH], labels[at : at + BATCH]))
        for at in range(0, len(labels), BATCH)
    ]
    found = model.memory_plan, model.memory_report(), losses, model.get_weights()
    model.close()
    return found


whole, _, losses, weights = train(planning.share())
plan, report, found, trained = train(planning.gist())
print(plan)
for each in report.codings:
    print(
        f"{each.tensor:14} {each.codec}: {each.tensor_bytes:,} bytes planned as "
        f"{each.planned_bytes:,}, {each.used_bytes:,} in the last step; "
        f"did not fit in {each.raw} of {each.runs}"
    )
assert found == losses
assert all(map(np.array_equal, trained, weights))
print("the same bits")
rounded, _, found, _ = train(planning.gist("fp8"))
assert rounded.lossy == ("fp8",)
assert found[0] == losses[0]  # the forward phase has read no rounded number
assert rounded.peak_bytes < plan.peak_bytes < whole.peak_bytes
for name, each in (("as it is", whole), ("lossless", plan), ("fp8", rounded)):
    print(f"{name:8} {each.peak_bytes:10,} bytes")
