"""Forks while another thread is amid a call that changes something: nobody hangs.

Each call is repeated by a thread of the parent while the main thread forks; the child
makes the same call. A lock that nobody holds over the fork stays taken in the child.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")

PROGRAM = """
import itertools, os, signal, threading, warnings
from memcfg import config, memory
warnings.simplefilter("ignore", DeprecationWarning)  # fork in threads, 3.12
pool = memory.Pool(limit="64MiB")
device = memory.simulated("1GiB")
limited = memory.limiting(memory.system(), "64MiB")
counted = memory.statistics(memory.Pool())
above = memory.Pool(memory.Pool())
asking = memory.failure_callback(memory.Pool(limit="1MiB"), lambda nbytes: False)
tracked = memory.tracking(memory.Pool(), stacks=True, max_entries=50)
logged = memory.logging(memory.Pool(), os.devnull, overwrite=True)
arena = pool.arena(2**24)
counter = itertools.count(1)
cpu = config.list_physical_devices("CPU")[0]

def call():
    {call}

stop = threading.Event()
def repeat():
    while not stop.is_set():
        call()

thread = threading.Thread(target=repeat, daemon=True)
thread.start()
for _ in range({forks}):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        call()
        call()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.set()
thread.join()
for resource in pool, device, limited, counted, above, tracked, logged:
    resource.check()
print("well")
"""
MEMORY = {
    "Pool.allocate": "pool.allocate(100).free(); pool.allocate(2**17).free()",
    "pool on a pool": "above.allocate(2**17).free(); above.trim()",
    "system": "memory.system().allocate(100).free()",
    "limiting": "limited.allocate(100).free()",
    "statistics": "counted.allocate(100).free()",
    "failure callback": "asking.allocate(100).free()",
    "simulated": "device.allocate(100).free()",
    "tracking": "tracked.allocate(100).free()",
    "tracking.live": "tracked.allocate(100).free(); tracked.live(); tracked.trace()",
    "tracking.clear": "tracked.allocate(100).free(); tracked.clear()",
    "logging": "logged.allocate(100).free(); logged.flush()",
    "replay": "memory.replay(tracked.trace(), pool)",
    "detach": "pool.deallocate(pool.allocate(2**17).detach(), 2**17)",
    "Pool.set_limit": "pool.set_limit(2**25 + next(counter) % 64 * 2**16)",
    "LimitingResource.set_limit": "limited.set_limit(2**20 + next(counter))",
    "trim": "pool.trim(); pool.allocate(2**20).free()",
    "decay": "pool.decay(); pool.allocate(2**20).free()",
    "reset_peak": "[each.reset_peak() for each in (pool, device, limited, counted)]",
    "owners": "[each.owners() for each in (pool, device, limited, counted)]",
    "stats": "[each.stats() for each in (pool, device, limited, counted, above)]",
    "occupancy": "pool.occupancy()",
    "push and pop": "counted.push(); counted.by_tag()",
    "new pools": "memory.Pool(limit=2**20, growth=False)",
    "new simulated": "memory.Pool(memory.simulated(2**20)).allocate(64).free()",
    "new arenas": "pool.arena(2**20).grow(2**16)",
    "reports": "memory.summary(); memory.occupancy(); memory.list_live(top=None)",
    "snapshot": "memory.snapshot(os.devnull); pool.allocate(100).free()",
}
CONFIG = {
    "set_host_memory_limit": "config.set_host_memory_limit("
    "tracked=2**40 + next(counter), rss=2**41 + next(counter))",
    "get_host_memory_info": "config.get_host_memory_info()",
    "set_memory_limit": "config.set_memory_limit('CPU:0', 2**30 + next(counter))",
    "memory_fraction": "config.memory_fraction('CPU:0', 0.5)",
    "trim": "config.trim('CPU:0')",
    "reset_memory_stats": "config.reset_memory_stats('CPU:0')",
    "get_memory_info": "config.get_memory_info('CPU:0')",
    "set_soft_device_placement": "config.set_soft_device_placement(True)",
    "set_memory_growth": "config.set_memory_growth(cpu, True)",
    "set_visible_devices": "config.set_visible_devices(cpu)",
    "set_logical_device_configuration": "config.set_logical_device_configuration("
    "cpu, [config.LogicalDeviceConfiguration(64)])",
    "threads": "config.threading.set_intra_op_parallelism_threads(1)",
    "jit": "config.optimizer.set_jit(True)",
    "device": "config.logical_device('CPU:0').pool.allocate(64).free()",
}
# These start over with each call.
ANEW = {
    "reset": "config.reset(); config.list_logical_devices()",
    "limits": "config.reset(); config.set_host_memory_limit(tracked=2**40)",
    "simulated": "config.reset(); "
    "config.experimental.add_simulated_device(memory=2048)",
    "growth": "config.reset(); config.set_memory_growth(cpu, True)",
}


def survives(call: str, forks: int) -> None:
    program = PROGRAM.format(call=call, forks=forks)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "well\n")


@pytest.mark.parametrize("name", MEMORY)
def test_amid_a_call_of_memory(name, tenths):
    survives(MEMORY[name], 2 * tenths)


@pytest.mark.parametrize("name", CONFIG)
def test_amid_a_call_of_config(name, tenths):
    survives(CONFIG[name], 2 * tenths)


@pytest.mark.parametrize("name", ANEW)
def test_amid_a_configuration_that_starts_over(name, tenths):
    survives(ANEW[name], 2 * tenths)
