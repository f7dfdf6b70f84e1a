"""TensorFlow's guide to GPU memory, on GPUs that need not exist."""

import numpy as np

import memcfg as tf

# In place of hardware; the environment variable does the same for any program:
# MEMCFG_SIMULATED_DEVICES="GPU:2:16GiB"
for _ in range(2):
    tf.config.experimental.add_simulated_device("GPU", memory="16GiB")

# From here on it is the guide's code: a limit of 1 GiB on the first GPU ...
gpus = tf.config.experimental.list_physical_devices("GPU")
if gpus:
    try:
        tf.config.experimental.set_virtual_device_configuration(
            gpus[0],
            [tf.config.experimental.VirtualDeviceConfiguration(memory_limit=1024)],
        )
        # ... and growth, which TensorFlow would drop beside a limit.
        for gpu in gpus:
            tf.config.experimental.set_memory_growth(gpu, True)
        logical_gpus = tf.config.experimental.list_logical_devices("GPU")
        print(len(gpus), "physical GPUs,", len(logical_gpus), "logical GPUs")
    except RuntimeError as error:  # a device was used before
        print(error)

for device in logical_gpus:
    print(device.name, "may use", tf.config.memory_fraction(device), "of its GPU")
assert tf.config.memory_fraction("GPU:0") == 1024 / 16384

# Too late: from the first use on only the limit can change.
try:
    tf.config.experimental.set_memory_growth(gpus[0], False)
except RuntimeError as error:
    print(error)
tf.config.set_memory_limit("GPU:0", "2GiB")

# Models can be planned there, which takes nothing ...
with tf.device("GPU:0"):
    model = tf.nn.Sequential([tf.nn.Input((784,)), tf.nn.Dense(4096), tf.nn.Dense(10)])
    model.compile("sgd", tf.nn.SparseCategoricalCrossentropy(from_logits=True))
print(f"a batch of 4096 would take {model.plan(4096).peak_bytes:,} bytes")
assert tf.config.get_memory_info("GPU:0") == {"current": 0, "peak": 0}

# ... and not run: there is no memory behind the addresses.
try:
    model.predict(np.zeros((1, 784), np.float32))
except RuntimeError as error:
    print(error)
