"""Find the largest batch that a limit allows, before any memory is taken."""

import memcfg as mc

nn = mc.nn

cpu = mc.config.list_physical_devices("CPU")[0]
mc.config.set_logical_device_configuration(
    cpu, [mc.config.LogicalDeviceConfiguration(memory_limit="16MiB")]
)

layers = [nn.Input((32, 32, 3))]
for filters in (16, 32, 32):
    layers += [nn.Conv2D(filters, 3, padding="same"), nn.ReLU(), nn.MaxPool2D(2)]
model = nn.Sequential([*layers, nn.Flatten(), nn.Dense(10)])

fits = {}
for policy in ("keep_all", "share", "auto"):
    model.compile(
        nn.SGD(0.05, momentum=0.9),
        nn.SparseCategoricalCrossentropy(from_logits=True),
        memory=policy,
    )
    batch_size = 1
    while True:
        try:
            plan = model.plan(batch_size)
        except mc.errors.InfeasiblePlanError as error:
            print(f"{policy}: {error.smallest_limit_bytes:,} bytes for {batch_size}")
            break
        fits[policy] = batch_size
        batch_size *= 2
    print(f"{policy}: a batch of {fits[policy]} fits into 16 MiB")

assert fits["keep_all"] <= fits["share"] <= fits["auto"]
assert mc.config.get_memory_info("CPU:0")["current"] == 0  # nothing was taken
