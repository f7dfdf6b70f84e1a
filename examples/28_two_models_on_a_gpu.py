"""Two logical GPUs of one GPU, each with a limit, growth and a model of its own."""

import sys

import numpy as np

import memcfg as mc

gpus = mc.config.list_physical_devices("GPU")
if not gpus:
    mc.config.set_soft_device_placement(False)
    try:
        with mc.device("/GPU:1"):
            pass
    except ValueError as error:
        print(error)  # says what is missing
    sys.exit()

mc.config.set_memory_growth(gpus[0], True)
mc.config.set_logical_device_configuration(
    gpus[0],
    [
        mc.config.LogicalDeviceConfiguration(memory_limit=256),  # MiB
        mc.config.LogicalDeviceConfiguration(memory_limit="192MiB"),
    ],
)

generator = np.random.default_rng(0)
x = generator.normal(size=(512, 32)).astype(np.float32)
y = (x @ generator.normal(size=(32, 1)) > 0).astype(np.float32)

models = []
for number, policy in enumerate((mc.plan.share(), mc.plan.sqrt_checkpoint())):
    with mc.device(f"/GPU:{number}"):
        mc.nn.set_random_seed(0)
        model = mc.nn.Sequential(
            [mc.nn.Dense(128, activation="relu"), mc.nn.Dense(1, activation="sigmoid")]
        )
        model.compile("adam", "binary_crossentropy", memory=policy)
        models.append(model)

losses = [
    model.fit(x, y, batch_size=64, epochs=10, seed=0, verbose=0).history["loss"]
    for model in models
]
assert losses[0] == losses[1]  # recomputing changes no bit
for logical in mc.config.list_logical_devices("GPU"):
    used, limit = (
        mc.config.get_memory_info(logical)["peak"],
        mc.config.get_memory_limit(logical),
    )
    print(f"{logical.name} took {used:,} of {limit:,} bytes")
    assert used <= limit
