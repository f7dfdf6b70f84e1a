"""A model that no device can hold: four workers have a quarter of it each."""

import os
import tempfile

import numpy as np

import memcfg as mc

LIMIT = "2900KiB"
(cpu,) = mc.config.list_physical_devices("CPU")
one = mc.config.LogicalDeviceConfiguration(memory_limit=LIMIT)
mc.config.set_logical_device_configuration(cpu, [one] * 4)

rng = np.random.default_rng(0)
x = rng.standard_normal((64, 256)).astype(np.float32)
y = np.tanh(x @ rng.standard_normal((256, 256)).astype(np.float32) / 16)


def made():
    """Twelve layers: 3.2 MB of weights, and twice that of Adam's state."""
    mc.nn.set_random_seed(0)
    layers = [mc.nn.Dense(256, activation="tanh") for _ in range(12)]
    model = mc.nn.Sequential([mc.nn.Input((256,)), *layers])
    model.compile(mc.nn.Adam(1e-3), "mse")
    return model


alone = made()
try:
    alone.fit(x, y, batch_size=16, verbose=0)
except mc.errors.InfeasiblePlanError as error:
    print(str(error).splitlines()[0])
alone.close()

options = {"batch_size": 16, "shuffle": False, "verbose": 0}
sharded = {"training_mode": "all_reduce", "shard": "parameters"}
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "model.memcfg")
    model = made()
    with mc.parallel.ParallelWrapper(model, workers=4, **sharded) as wrapper:
        losses = wrapper.fit(x, y, epochs=2, **options).history["loss"]
        for report in wrapper.memory_reports(verify=True):
            print(
                f"{report.device}: {report.measured_peak_bytes:,} of "
                f"{report.limit_bytes:,} bytes, weights "
                f"{report.by_role['parameter']:,}"
            )
            assert report.measured_peak_bytes == report.predicted_peak_bytes
            assert report.measured_peak_bytes <= report.limit_bytes
        model.save(path)  # the whole model, whoever has its parts
        losses += wrapper.fit(x, y, epochs=1, **options).history["loss"]
    model.close()

    # Three ranks go on from the file with the same losses.
    for number in range(3):
        mc.config.set_memory_limit(f"/CPU:{number}", "4MiB")
    restored = mc.nn.models.load_model(path)
with mc.parallel.ParallelWrapper(restored, workers=3, **sharded) as wrapper:
    again = wrapper.fit(x, y, epochs=1, **options).history["loss"]
print("losses", *(f"{loss:.6f}" for loss in losses), "again", f"{again[0]:.6f}")
np.testing.assert_allclose(again[0], losses[-1], rtol=1e-6)
