"""What the real cuDNN plans for a GPU that is not there; a program of its own.

cuDNN plans by a description of a GPU. It wants the driver's library to load, and calls
nothing of it: where there is none, `stub` is in its place. Prints JSON: for each GPU
and convolution the plans, and what was warned of.
"""

from __future__ import annotations

import ctypes
import json
import sys
import warnings
from types import SimpleNamespace

from memcfg.devices.cuda._convolution_spec import ConvolutionSpec
from memcfg.devices.cuda.libraries._cudnn import Cudnn, find_cudnn
from memcfg.errors import MissingDependencyError

MISSING = 77


def described(name, version, multiprocessors, shared_bytes, memory_bytes):
    """Describe a GPU as cuDNN serialises one."""
    return {
        "deviceName": name,
        "deviceVer": version,
        "driverVer": 13000,
        "cudaDeviceId": 0,
        "pciDeviceId": 0,
        "multiProcessorCount": multiprocessors,
        "totalGlobalMem": memory_bytes,
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048,
        "maxCtasPerSM": 32,
        "warpSize": 32,
        "regsPerBlock": 65536,
        "maxRegistersPerSM": 65536,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": shared_bytes,
        "reservedSharedMemoryPerBlock": 1024,
        "oversizedSharedMemoryPerBlock": 0,
        "supportCoopLaunch": 1,
        "isTccDriver": 0,
        "smClockRateKHz": 1980000,
        "memClockRateKHz": 2619000,
        "memoryBusWidth": 5120,
        "l2CacheSize": 52428800,
    }


GPUS = {
    "H100": described("NVIDIA H100", 900, 132, 232448, 80 << 30),
    "A100": described("NVIDIA A100", 800, 108, 166912, 40 << 30),
}
SAME = ((1, 1), (1, 1))
NONE = ((0, 0), (0, 0))
SHAPES = {  # x, kernel, strides, padding, dilation
    "common": ((32, 28, 28, 64), (3, 3, 64, 128), (1, 1), SAME, (1, 1)),
    "odd": ((2, 7, 8, 3), (3, 3, 3, 9), (1, 1), SAME, (1, 1)),
    "asymmetric": ((8, 28, 28, 16), (3, 3, 16, 32), (2, 2), ((0, 1), (0, 1)), (1, 1)),
    "dilated": ((1, 9, 10, 5), (2, 3, 5, 2), (1, 2), ((2, 0), (0, 1)), (2, 3)),
    "depthwise": ((3, 8, 8, 6), (3, 3, 1, 6), (1, 1), SAME, (1, 1)),
    "grouped": ((2, 9, 9, 8), (3, 3, 4, 16), (2, 2), SAME, (1, 1)),
    "pixels": ((8, 28, 28, 32), (1, 1, 32, 64), (1, 1), NONE, (1, 1)),
    "one unit": ((8, 28, 28, 32), (3, 3, 32, 1), (1, 1), NONE, (1, 1)),
    "gaps": ((2, 4, 4, 3), (2, 2, 3, 4), (3, 3), NONE, (1, 1)),
    "large": ((64, 224, 224, 64), (3, 3, 64, 64), (1, 1), SAME, (1, 1)),
}
KINDS = ("conv2d", "conv2d_bias", "conv2d_gradient_input", "conv2d_gradient_kernel")


def specs():
    for name, (x, kernel, strides, padding, dilation) in SHAPES.items():
        lengths = (
            (x[1 + i] + sum(padding[i]) - dilation[i] * (kernel[i] - 1) - 1)
            // strides[i]
            for i in (0, 1)
        )
        y = (x[0], *(length + 1 for length in lengths), kernel[3])
        for kind in KINDS:
            spec = ConvolutionSpec(kind, x, kernel, y, strides, dilation, padding)
            yield f"{kind}, {name}", spec


class Deviceless:
    """The front end, whose graphs are for the described GPU and have no handle."""

    def __init__(self, module, gpu):
        self._module = module
        self._gpu = module.create_device_properties(json.dumps(gpu))

    def __getattr__(self, name):
        return getattr(self._module, name)

    def create_handle(self):
        return None

    def destroy_handle(self, handle):
        pass

    def pygraph(self, handle, **options):
        return self._module.pygraph(device_property=self._gpu, **options)


def main(stub):
    try:
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    except OSError:
        ctypes.CDLL(stub, mode=ctypes.RTLD_GLOBAL)
    try:
        module = find_cudnn(13000)
    except MissingDependencyError as error:
        print(error)
        sys.exit(MISSING)
    context = SimpleNamespace(call=lambda function: function())
    found = {}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for name, gpu in GPUS.items():
            library = Cudnn(context, Deviceless(module, gpu), gpu["deviceVer"] // 10)
            for what, spec in specs():
                found[f"{name}, {what}"] = [
                    (each.algorithm, each.plan.workspace_bytes, each.scratch_bytes)
                    for each in library.choices(spec)
                ]
    print(json.dumps({"plans": found, "told": [str(each.message) for each in told]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
