"""A language model of characters, trained by truncated back-propagation through time.

The text is cut into parallel streams. Each batch holds the next steps of every stream,
and a stateful LSTM goes on where the batch before ended: gradients reach back one
batch, the state much further. Memory depends on the length of a batch alone.
"""

import numpy as np

import memcfg as mc

nn = mc.nn
nn.set_random_seed(0)
mc.config.set_memory_limit("CPU:0", "4MiB")

TEXT = "the quick brown fox jumps over the lazy dog. " * 60
STREAMS, STEPS = 8, 15
letters = sorted(set(TEXT))
codes = np.array([letters.index(letter) for letter in TEXT], np.int32)
length = (len(codes) - 1) // STREAMS // STEPS * STEPS
x = codes[: STREAMS * length].reshape(STREAMS, length)
y = codes[1 : STREAMS * length + 1].reshape(STREAMS, length)


def batches(array):
    """Yield the next steps of all streams, again and again."""
    for start in range(0, length, STEPS):
        yield np.ascontiguousarray(array[:, start : start + STEPS])


inputs = nn.Input((STEPS,), batch_size=STREAMS, dtype="int32")
memory = nn.LSTM(48, return_sequences=True, stateful=True)
h = memory(nn.Embedding(len(letters), 12)(inputs))
model = nn.Model(inputs, nn.Dense(len(letters))(h))
model.compile(
    nn.Adam(0.01, global_clipnorm=1.0),
    nn.SparseCategoricalCrossentropy(from_logits=True),
)
losses = []
for _epoch in range(5):
    memory.reset_states()
    found = [
        model.train_on_batch(*batch)
        for batch in zip(batches(x), batches(y), strict=True)
    ]
    losses.append(float(np.mean(found)))
print("loss a letter:", " ".join(f"{loss:.2f}" for loss in losses))
assert losses[-1] < 0.5 * losses[0]

memory.reset_states()
logits = np.concatenate(
    [model.predict(part, STREAMS, verbose=0) for part in batches(x)], axis=1
)
right = (logits.argmax(-1) == y).mean()
print(f"{right:.0%} of the letters are foreseen; {model.memory_plan.peak_bytes} bytes")
assert right > 0.9
