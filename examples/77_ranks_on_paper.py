"""What 16 devices would hold of a large language model, without any of them."""

import memcfg as mc

model = mc.models.gpt(4, 8192, 64, vocabulary_size=32_000, sequence_length=512)
model.compile("adam", mc.nn.losses.SparseCategoricalCrossentropy(from_logits=True))
weights = model.count_params()
print(f"{weights / 1e9:.1f} billion weights, {12 * weights / 1e9:.0f} GB with Adam's")

found = mc.parallel.estimate(
    model, 16, batch_size=32, limit="24GiB", link="25GB", latency="5us", profile="a100"
)
print(found)

assert found.best.peak_bytes <= 24 << 30
assert [row.fits for row in found.rows] == [False, True, True, True]
assert mc.config.get_memory_info("CPU:0")["peak"] == 0  # nothing was taken

# Of several ways that fit, training chooses by itself: ParallelWrapper(shard="auto").
small = mc.models.lenet5()
small.compile("adam", mc.nn.losses.SparseCategoricalCrossentropy(from_logits=True))
for limit in ("2MiB", "500KiB"):
    best = mc.parallel.estimate(small, 8, 64, limit, link="25GB").best
    print(f"lenet5 within {limit}: divide {best.shard or 'nothing'}")
