"""Raise and lower a limit while memory is in use, give memory back, start over."""

import memcfg as mc

MIB = 2**20

cpu = mc.config.list_physical_devices("CPU")[0]
mc.config.set_logical_device_configuration(
    cpu,
    [
        mc.config.LogicalDeviceConfiguration(memory_limit=8),  # MiB
        mc.config.LogicalDeviceConfiguration(memory_limit="25%"),  # of the machine's
    ],
)
details = mc.config.get_device_details(cpu)
print(f"{details['device_name']}, {details['cores']} cores")

pool = mc.config.logical_device("CPU:0").pool
block = pool.allocate(6 * MIB, tag="window")
try:
    pool.allocate(4 * MIB)
except mc.errors.ResourceExhaustedError as error:
    print(error)

# The same request fits under a higher limit; what is in use cannot be cut off.
assert mc.config.set_memory_limit("CPU:0", "12MiB") == 8 * MIB
pool.allocate(4 * MIB).free()
try:
    mc.config.set_memory_limit("CPU:0", "4MiB")
except mc.errors.ResourceExhaustedError as error:
    print(error)
print(mc.config.get_memory_info("CPU:0"))

# A pool keeps what was freed, for the next request; trim gives it back.
block.free()
given = mc.config.trim("CPU:0")
print(f"{given:,} bytes went back to the system")
assert pool.stats().reserved_bytes <= given

# The whole process can be limited too, over all devices.
before = mc.config.set_host_memory_limit(tracked="64MiB")
try:
    mc.config.logical_device("CPU:1").pool.allocate(65 * MIB)
except mc.errors.ResourceExhaustedError as error:
    print(error)
mc.config.set_host_memory_limit(tracked=before.tracked)

# Settings are fixed after the first use, until everything is freed.
left = pool.allocate(100, tag="forgotten")
try:
    mc.config.reset()
except RuntimeError as error:
    print(error)
left.free()
mc.config.reset()
mc.config.set_memory_growth(cpu, False)
mc.config.set_logical_device_configuration(
    cpu, [mc.config.LogicalDeviceConfiguration(memory_limit=16)]
)
pool = mc.config.logical_device().pool
print(f"without growth {pool.stats().reserved_bytes:,} bytes are taken at once")
