"""What the report on a GPU checks, each in a process of its own.

A check returns goals, whose numbers were measured, and notes beside them. A goal of
seconds is lost or held, and no more; one of bytes or numbers fails the report.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import math
import os
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import gpu_networks
import gpu_profile
import numpy as np

import memcfg as mc
from memcfg._core import CudaEvent, CudaStream
from memcfg.devices import OperandSpec
from memcfg.errors import ResourceExhaustedError

nn = mc.nn
ROOT = Path(__file__).resolve().parents[2]
GPU = "/GPU:0"
MIB = 1 << 20
SLACK = 16  # MiB; page tables, and what the driver has beside a pool
SAID = 60_000  # characters of what failing tests said that are kept
SMALL = os.environ.get("MEMCFG_GPU_REPORT_SMALL") == "1"  # a stand-in is slow


@dataclass
class Goal:
    """A number, and what it is to be at most or at least."""

    what: str
    value: float | None  # None: it was not measured
    relation: str  # "<=" or ">="
    wanted: float
    unit: str = ""
    of_time: bool = False  # it cannot fail the report
    why: str = ""  # it was not measured

    @property
    def held(self):
        if self.value is None:
            return None
        if self.relation == "<=":
            return self.value <= self.wanted
        return self.value >= self.wanted


@dataclass
class Found:
    """What a check found."""

    goals: list[Goal] = field(default_factory=list)
    notes: dict = field(default_factory=dict)

    def goal(self, *of, **more):
        self.goals.append(Goal(*of, **more))

    def time(self, *of, **more):
        self.goal(*of, of_time=True, **more)


def times(full):
    """How often something is done: as given, or hardly."""
    return max(2, full // 500) if SMALL else full


def device():
    return mc.config.logical_device(GPU)


def free_mib():
    """Free memory of the GPU as the driver says."""
    return device().context.memory_info()[0] / MIB


def limit_to(mib):
    (gpu,) = mc.config.list_physical_devices("GPU")[:1]
    mc.config.set_logical_device_configuration(
        gpu, [mc.config.LogicalDeviceConfiguration(memory_limit=mib)]
    )


def torch_on_gpu(*, use=True, tf32=False):
    """PyTorch in float32, or TF32; None where it is not, or without a GPU.

    Unless it is to `use` the GPU at once, it can still be given another allocator.
    """
    if find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    if use:
        torch.cuda.init()  # `raw_alloc` does not do it
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    return torch


NO_TORCH = "PyTorch with CUDA is not installed"


def recipe_of(name):
    recipe = gpu_networks.RECIPES[name]
    return gpu_networks.tiny(recipe) if SMALL else recipe


def compiled(recipe, memory=None):
    with mc.device(GPU):
        nn.set_random_seed(0)
        model = gpu_networks.ours(recipe)
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=memory)
    return model


# -- who shares the GPU ----------------------------------------------------------------


def check_one_context():
    """PyCUDA, cuBLASLt, cuDNN, PyTorch and memcfg in the primary context."""
    import pycuda
    import pycuda.driver as cuda

    found = Found()
    contexts = {"memcfg": device().context.call(current_context)}
    primary = cuda.Device(0).retain_primary_context()
    primary.push()
    try:
        contexts["pycuda"] = current_context()
        found.notes["pycuda"] = pycuda.VERSION_TEXT
        a, b, x, kernel = share_with_pycuda(found)
        torch = torch_on_gpu()
        if torch is not None:
            contexts["PyTorch"] = context_of_torch(torch)
        for name, error in compare_libraries(found, torch, a, b, x, kernel).items():
            why = "the library is not there" if error is None else ""
            found.goal(f"{name} in one context, error", error, "<=", 1e-4, why=why)
        found.goal("primary contexts in use", len(set(contexts.values())), "<=", 1)
    finally:
        primary.pop()
    return found


def current_context():
    """The address of the thread's context."""
    library = ctypes.CDLL(os.environ.get("MEMCFG_CUDA_LIBRARY") or "libcuda.so.1")
    context = ctypes.c_void_p()
    assert library.cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


def context_of_torch(torch):
    """The address of the context that PyTorch chooses, in a thread that has none."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(current_context).result() is None
        pool.submit(torch.zeros, 1, device="cuda").result()
        return pool.submit(current_context).result()


def share_with_pycuda(found):
    """Arrays of PyCUDA's in the pool, changed by a kernel that it has compiled."""
    from pycuda import gpuarray
    from pycuda.compiler import SourceModule

    generator = np.random.default_rng(0)
    take = mc.interop.pycuda_allocator(GPU)
    host = [
        generator.standard_normal(shape).astype(np.float32)
        for shape in ((96, 64), (64, 80), (4, 12, 12, 8), (3, 3, 8, 16))
    ]
    before = mc.config.get_memory_info(GPU)["current"]
    arrays = [gpuarray.to_gpu(each, allocator=take) for each in host]
    taken = mc.config.get_memory_info(GPU)["current"] - before
    nbytes = sum(each.nbytes for each in host)
    found.goal("PyCUDA's arrays in the pool", taken, ">=", nbytes, "B")
    source = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }"
    twice = SourceModule(source).get_function("twice")
    for argument in (arrays[0], arrays[0].gpudata):  # the array, and its memory
        twice(argument, block=(64, 1, 1), grid=(1, 1))
    host[0].reshape(-1)[:64] *= 4
    error = float(np.abs(arrays[0].get() - host[0]).max())
    found.goal("PyCUDA's kernel on the pool's memory, error", error, "<=", 0)
    return list(zip(arrays, host, strict=True))


def compare_libraries(found, torch, a, b, x, kernel):
    """Relative errors of the library's product and convolution, against float64."""
    from pycuda import gpuarray

    take = mc.interop.pycuda_allocator(GPU)

    def run(op_type, attributes, operands, shape, wanted):
        specs = [OperandSpec(array.shape, "float32") for array, _ in operands]
        out = OperandSpec(shape, "float32")
        kernels = device().kernels
        rows = kernels.algorithms(op_type, attributes, specs, [out])
        name = next((n for n, *_ in rows if n.startswith(wanted)), None)
        if name is None:
            return None, None
        made = kernels.make(op_type, attributes, specs, [out], name)
        y = gpuarray.empty(shape, np.float32, allocator=take)
        addresses = [int(array.gpudata) for array, _ in operands]
        with device().pool.allocate(max(made.scratch_bytes, 1)) as scratch:
            made.run([*addresses, int(y.gpudata)], scratch.address)
        return name, y.get()

    window = {
        "strides": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "dilation": (1, 1),
        "groups": 1,
    }
    meant = {
        "product": a[1].astype(np.float64) @ b[1].astype(np.float64),
        "convolution": np.zeros((*x[1].shape[:3], kernel[1].shape[3])),
    }
    mc.ops.op_type("conv2d").numpy(
        window,
        [x[1].astype(np.float64), kernel[1].astype(np.float64)],
        [meant["convolution"]],
    )
    shapes = {name: value.shape for name, value in meant.items()}
    errors = {}
    for what, operands, op, attributes, wanted in (
        ("product", (a, b), "dense", {}, "cublaslt"),
        ("convolution", (x, kernel), "conv2d", window, "cudnn"),
    ):
        name, y = run(op, attributes, operands, shapes[what], wanted)
        if name is None:
            errors[f"memcfg's {what} by {wanted}"] = None
        else:
            errors[f"memcfg's {what} by {name}"] = relative(y, meant[what])
    if torch is not None:
        p, q, image, filters = (
            torch.from_numpy(host).cuda() for _, host in (a, b, x, kernel)
        )
        y = torch.nn.functional.conv2d(
            image.permute(0, 3, 1, 2), filters.permute(3, 2, 0, 1), padding=1
        )
        errors["PyTorch's product"] = relative((p @ q).cpu().numpy(), meant["product"])
        y = y.permute(0, 2, 3, 1).cpu().numpy()
        errors["PyTorch's convolution"] = relative(y, meant["convolution"])
        found.notes["PyTorch"] = torch.__version__
        found.notes["cuDNN"] = torch.backends.cudnn.version()
    return errors


def relative(y, meant):
    return float(np.abs(y - meant).max() / np.abs(meant).max())


def check_torch_in_the_pool():
    """PyTorch's tensors lie in the pool, under its limit."""
    found, limit = Found(), 512
    if torch_on_gpu(use=False) is None:
        what = "PyTorch in the pool, error of loss and gradients"
        found.goal(what, None, "<=", 1e-3, why=NO_TORCH)
        return found
    import torch

    limit_to(limit)
    allocator = mc.interop.torch_allocator(GPU)
    torch.cuda.memory.change_current_allocator(allocator)

    def train(where):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(32 * 16 * 16, 10),
        )
        x, y = torch.randn(64, 3, 16, 16), torch.randint(0, 10, (64,))
        net, x, y = net.to(where), x.to(where), y.to(where)
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        norm = sum(float(p.grad.square().sum()) for p in net.parameters())
        return loss.item(), norm

    here, there = train("cpu"), train("cuda")
    apart = max(abs(p - q) / abs(p) for p, q in zip(here, there, strict=True))
    found.goal("PyTorch in the pool, error of loss and gradients", apart, "<=", 1e-3)
    peak = device().pool.stats().peak_reserved_bytes / MIB
    found.goal("PyTorch's peak in a pool's limit", peak, "<=", limit, "MiB")
    found.goal("PyTorch's tensors in the pool", peak, ">=", 1, "MiB")
    try:
        torch.empty(2 * limit * MIB, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        found.notes["twice the limit"] = str(error).splitlines()[0][:200]
        refused = 1
    else:
        refused = 0
    found.goal("requests beyond the limit refused", refused, ">=", 1)
    return found


def check_torch_budget():
    """PyTorch's steps within a budget: bytes of its allocator, and bits.

    Bits are those of the traced graph without a plan: eager's batch normalisation on a
    GPU is cuDNN's, the graph's is PyTorch's own.
    """
    found, torch = Found(), torch_on_gpu()
    if torch is None:
        what = "PyTorch's step within a budget, of its limit"
        found.goal(what, None, "<=", 1.0, "x", why=NO_TORCH)
        return found
    import torch_steps

    torch.backends.cudnn.deterministic = True
    for kind in (torch_steps.ResNet, torch_steps.VGG, torch_steps.UNet):
        compare_budgets(torch, kind, found)
    return found


def compare_budgets(torch, kind, found):
    """Add what steps of one network have in use, and whether bits are the same."""
    import memcfg.torch as mt

    x = torch.randn(128, 3, 32, 32, device="cuda")
    y = torch.randint(0, 10, (len(x),), device="cuda")
    torch.manual_seed(0)
    net = kind().cuda()
    own = sum(-(-t.nbytes // 512) * 512 for t in (*net.parameters(), *net.buffers(), x))
    told = mt.estimate(net, (x,))
    results, parts = [], {}
    for share in (None, 1.0, 0.5):
        torch._dynamo.reset()
        module = copy.deepcopy(net)
        limit = math.inf
        if share is not None:
            room = told.peak_bytes - told.floor_bytes
            limit = told.floor_bytes + int(share * room)
        run = mt.budget(module, limit)
        torch._C._cuda_clearCublasWorkspaces()
        others = torch.cuda.memory_allocated() - own
        for _ in range(5):
            for each in module.parameters():
                each.grad = None
            torch.manual_seed(1)
            torch.cuda.reset_peak_memory_stats()
            loss = torch.nn.functional.cross_entropy(run(x), y)
            loss.backward()
            loss = loss.item()
            peak = torch.cuda.max_memory_allocated() - others
        results.append([loss, *(p.grad for p in module.parameters())])
        parts[share] = mt.get_budget(run).predicted_peak_bytes / peak
        if share is not None:
            what = f"PyTorch's {kind.__name__} within a budget"
            found.goal(f"{what}, step's part of it", peak / limit, "<=", 1.0, "x")
            found.goal(f"{what}, predicted of measured", parts[share], ">=", 0.98, "x")
    same = sum(
        a[0] == b[0] and all(map(torch.equal, a[1:], b[1:]))
        for a, b in pairwise(results)
    )
    found.goal(f"{kind.__name__}: plans with the bits of none", same, ">=", 2)
    found.notes[kind.__name__] = {
        "estimate": told.peak_bytes,
        "floor": told.floor_bytes,
        "predicted, part of measured": list(parts.values()),
    }


def check_torch_estimate():
    """What is told of eager steps, and a function with effects in a planned one."""
    found, torch = Found(), torch_on_gpu()
    if torch is None:
        what = "estimate of PyTorch's eager step, of measured"
        found.goal(what, None, ">=", 1.0, "x", why=NO_TORCH)
        return found
    import torch_steps

    torch.backends.cudnn.deterministic = True
    for kind in (torch_steps.ResNet, torch_steps.VGG, torch_steps.GPT):
        part = estimated_part(torch, kind)
        what = f"estimate of PyTorch's eager {kind.__name__}, of measured"
        found.goal(what, part, ">=", 0.99, "x")
        found.goal(what, part, "<=", 1.02, "x")
    told = run_with_effects(torch)
    found.goal("steps with a function's effects as in eager, bits too", told, ">=", 3)
    return found


def estimated_part(torch, kind):
    """The bytes that are told of a step of eager PyTorch, of those it has in use."""
    import memcfg.torch as mt

    torch.manual_seed(0)
    net, x = kind().cuda(), torch_steps_inputs(torch, kind).cuda()
    y = torch.randint(0, 10, (len(x),), device="cuda")

    def loss(out):
        return torch.nn.functional.cross_entropy(out, y)

    told = mt.estimate(net, (x,), loss=loss).eager_bytes
    own = sum(-(-t.nbytes // 512) * 512 for t in (*net.parameters(), *net.buffers(), x))
    torch._C._cuda_clearCublasWorkspaces()
    others = torch.cuda.memory_allocated() - own
    for _ in range(3):
        for each in net.parameters():
            each.grad = None
        torch.cuda.reset_peak_memory_stats()
        out = net(x)
        value = loss(out)
        value.backward()
        peak = torch.cuda.max_memory_allocated() - others
    return told / peak


def torch_steps_inputs(torch, kind):
    """Inputs that are large beside a kernel's workspace."""
    if kind.__name__ == "GPT":
        return torch.randint(0, 100, (64, 64))
    return torch.randn(128, 3, 32, 32)


def run_with_effects(torch):
    """The number of steps whose bits and effects are those of eager."""
    import memcfg.torch as mt

    told = []

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            told.append(float(x.sum()))
            return x.sin()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            told.append(float(gradient.sum()))
            return gradient * x.cos()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in "1234")

        def forward(self, x):
            for layer in self.layers:
                x = Watched.apply(layer(x).tanh())
            return x

    torch.manual_seed(0)
    net, x = Net().cuda(), torch.randn(512, 256, device="cuda")
    limit = mt.estimate(net, (x,)).floor_bytes
    other = copy.deepcopy(net)
    run = mt.budget(other, limit, example=(x,))
    same = 0
    for _ in range(3):
        results = []
        for module, call in ((net, net), (other, run)):
            del told[:]
            for each in module.parameters():
                each.grad = None
            call(x).square().mean().backward()
            results.append(([p.grad for p in module.parameters()], list(told)))
        (one, first), (two, second) = results
        same += first == second and all(map(torch.equal, one, two))
    return same


def check_torch_offload():
    """PyTorch's steps whose tensors leave for page-locked memory: bytes, and bits.

    The limit is the floor of computing again, at which both are timed, and the floor
    with copies. Networks compute enough for copies to hide behind.
    """
    found, torch = Found(), torch_on_gpu()
    if torch is None:
        what = "PyTorch's step that off-loads, of its limit"
        found.goal(what, None, "<=", 1.0, "x", why=NO_TORCH)
        return found
    import torch_steps

    torch.backends.cudnn.deterministic = True
    for kind in (torch_steps.ResNet, torch_steps.VGG):
        compare_offloading(torch, kind, found)
    return found


def several_steps(torch, run, x, y, count=8):
    """The last loss and peak, and the shortest time behind the first few."""
    seconds = []
    for _ in range(count):
        run.zero_grad()
        torch.manual_seed(1)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(run(x), y)
        loss.backward()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        loss = loss.item()
    return loss, torch.cuda.max_memory_allocated(), min(seconds[count // 2 :])


def compare_offloading(torch, kind, found):
    """Add what steps of one network have in use and take, with copies and without."""
    import memcfg.torch as mt
    from memcfg.errors import InfeasiblePlanError

    x = torch.randn(512, 3, 32, 32, device="cuda")
    y = torch.randint(0, 10, (len(x),), device="cuda")
    torch.manual_seed(0)
    net = kind().cuda()
    own = sum(-(-t.nbytes // 512) * 512 for t in (*net.parameters(), *net.buffers(), x))
    told = mt.estimate(net, (x,))
    torch._dynamo.reset()
    lowest = told.floor_bytes
    try:
        mt.budget(net, 1, example=(x,), spill_to="host")
    except InfeasiblePlanError as error:
        lowest = error.smallest_limit_bytes
    half = (told.floor_bytes + told.peak_bytes) // 2
    cases = {
        "no limit": (math.inf, {}),
        "computed again, half way": (half, {}),
        "off-loaded, half way": (half, {"spill_to": "host"}),
        "computed again, floor": (told.floor_bytes, {}),
        "off-loaded, the same limit": (told.floor_bytes, {"spill_to": "host"}),
        "off-loaded, floor": (lowest, {"spill_to": "host"}),
    }
    results, notes = [], {"floor": told.floor_bytes, "floor with copies": lowest}
    for name, (limit, options) in cases.items():
        torch._dynamo.reset()
        module = copy.deepcopy(net)
        run = mt.budget(module, limit, **options)
        torch._C._cuda_clearCublasWorkspaces()
        others = torch.cuda.memory_allocated() - own
        loss, peak, seconds = several_steps(torch, run, x, y)
        peak -= others
        results.append([loss, *(p.grad for p in module.parameters())])
        predicted = mt.get_budget(run).predicted_peak_bytes / peak
        plan = mt.get_budget(run).memory_plan
        notes[name] = {
            "method": plan.method,
            "peak": peak,
            "predicted, part of measured": predicted,
            "milliseconds": 1e3 * seconds,
            "on the host": mt.get_budget(run).spill_bytes,
            "copied": plan.predicted.moved_bytes,
        }
        if options:
            what = f"PyTorch's {kind.__name__}, {name}"
            found.goal(f"{what}, step's part of it", peak / limit, "<=", 1.0, "x")
            found.goal(f"{what}, predicted of measured", predicted, ">=", 0.98, "x")
    same = sum(
        a[0] == b[0] and all(map(torch.equal, a[1:], b[1:]))
        for a, b in pairwise(results)
    )
    wanted = len(cases) - 1
    found.goal(f"{kind.__name__}: off-loaded with the same bits", same, ">=", wanted)
    tell_times(kind, notes, found)


def tell_times(kind, notes, found):
    """Add whether something left, and whether that is faster than to compute again."""
    left = notes["off-loaded, floor"]["on the host"]
    gains = notes["floor with copies"] < notes["floor"]  # else no copy is worth it
    found.goal(f"{kind.__name__}: bytes that left", left, ">=", int(gains))
    again = notes["computed again, floor"]["milliseconds"]
    fast = notes["off-loaded, the same limit"]["milliseconds"] / again
    what = f"{kind.__name__}: off-loaded, of the time of computing again"
    found.time(what, fast, "<=", 1.05, "x")
    found.notes[kind.__name__] = notes


def check_torch_saved():
    """What PyTorch saves on a GPU within a limit, the rest on the host: bytes, bits."""
    found, torch = Found(), torch_on_gpu()
    if torch is None:
        what = "saved tensors of a GPU, of their limit"
        found.goal(what, None, "<=", 1.0, "x", why=NO_TORCH)
        return found
    import torch_networks

    torch.backends.cudnn.deterministic = True
    for name in ("resnet", "unet", "gpt"):
        torch.manual_seed(0)
        net = torch_networks.NETWORKS[name]().cuda()
        if name == "gpt":  # which makes its places on the CPU
            net.positions.register_forward_pre_hook(lambda _, a: (a[0].cuda(),))
        x, y = (each.cuda() for each in next(iter(torch_networks.batches(name, 1))))
        x, y = x.repeat(16, *[1] * (x.dim() - 1)), y.repeat(16)
        compare_saving(torch, name, net, x, y, found)
    return found


def compare_saving(torch, name, net, x, y, found):
    """Add what one network saves within limits, and what its steps give and take."""
    import memcfg.torch as mt

    plain = saving_steps(torch, copy.deepcopy(net), x, y, nullcontext())
    whole = mt.saved_tensors("8GiB")
    saving_steps(torch, copy.deepcopy(net), x, y, whole)
    saved = whole.memory_report().saved_bytes
    for part in (0.5, 0.25):
        limit = max(int(part * saved), 1)
        saver = mt.saved_tensors(limit, spill_to="host", spill_limit=2 * saved)
        mine = saving_steps(torch, copy.deepcopy(net), x, y, saver)
        report = saver.memory_report()
        same = sum(
            a[0] == b[0] and all(map(torch.equal, a[1], b[1]))
            for a, b in zip(plain, mine, strict=True)
        )
        what = f"saved tensors of a {name}, {part:.0%} on the GPU"
        found.goal(f"{what}: of the limit", saver.peak_bytes / limit, "<=", 1.0, "x")
        found.goal(f"{what}: steps with the same bits", same, ">=", len(plain))
        found.goal(f"{what}: bytes left at the end", saver.current_bytes, "<=", 0)
        most = (saved - report.spilled_bytes + 512 * report.tensors) / plain[-1][3]
        between = mine[-1][3] / plain[-1][3]
        found.notes[what] = {
            "milliseconds": 1e3 * min(each[2] for each in mine[1:]),
            "plain": 1e3 * min(each[2] for each in plain[1:]),
            "in use between, part of plain": between,
            "saved tensors that stay, part of it": most,
            "peak": mine[-1][4],
            "plain, peak": plain[-1][4],
            "left": report.spilled_bytes,
            "read ahead": report.read_ahead_bytes,
        }
        found.goal(f"{what}: in use between, of plain", between, "<=", 1.0, "x")


def saving_steps(torch, net, x, y, around, count=4):
    """Loss, gradients, seconds, and bytes in use before backward and at most."""
    seen = []
    for number in range(count):
        torch.manual_seed(number)
        net.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        with around:
            loss = torch.nn.functional.cross_entropy(net(x), y)
        held = torch.cuda.memory_allocated()
        loss.backward()
        torch.cuda.synchronize()
        took = time.perf_counter() - began
        gradients = [p.grad.clone() for p in net.parameters()]
        most = torch.cuda.max_memory_allocated()
        seen.append((loss.item(), gradients, took, held, most))
    return seen


# -- tests and training ----------------------------------------------------------------


def check_tests():
    """The tests that are marked `gpu`."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu"]
    command += ["-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "PYTHONSAFEPATH": "1",  # not the folder's memcfg
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # whatever is installed there
    }
    if find_spec("xdist") is not None:
        count = min(8, max(1, (os.cpu_count() or 1) // 2))
        command += ["-p", "xdist.plugin", "-n", str(count), "--dist", "loadfile"]
    folders = [str(ROOT / "tests" / name) for name in ("memory", "core", "devices")]
    done = subprocess.run(
        [*command, *folders],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    return read_tests(done)


def read_tests(done):
    """What pytest said, in numbers."""
    found = Found()
    last = done.stdout.strip().splitlines()[-1:]
    counts = {
        kind: int(count)
        for count, kind in re.findall(r"(\d+) (\w+)", last[0] if last else "")
    }
    broken = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    count = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    ended = done.returncode in (0, 1)
    found.goal("contract suites, failures", count if ended else None, "<=", 0)
    if not ended:
        found.goals[-1].why = (done.stderr + done.stdout)[-500:]
    found.goal("contract suites, tests passed", counts.get("passed", 0), ">=", 1)
    skipped = re.findall(r"^SKIPPED (.+)", done.stdout, re.MULTILINE)
    found.notes |= {"failed": broken[:50], "skipped": skipped[:50]}
    if count or not ended:
        found.notes["said"] = done.stdout[-SAID:].splitlines()
    return found


def check_digits():
    """The digits reach the CPU's accuracy; 50 losses differ by 1e-3 at most.

    The losses are those of one convolution. The demo's network is normalized, and
    enlarges what is rounded: of two sets of kernels on one CPU, its losses were 0.02
    apart after 50 steps. So its accuracy is compared, and its losses are a note.
    """
    found, steps = Found(), 3 if SMALL else 50
    for name, wanted in (("one convolution", 0.005), ("demo", 0.02)):
        recipe = recipe_of(name)
        losses, accuracies = zip(
            *(train_digits(where, recipe, steps) for where in ("/CPU:0", GPU)),
            strict=True,
        )
        apart = float(np.abs(np.subtract(*losses)).max())
        if name == "demo":
            found.notes["losses of the demo's network, GPU's from CPU's"] = apart
        else:
            what = f"losses of {steps} steps on digits, GPU's from CPU's"
            found.goal(what, apart, "<=", 1e-3)
        what = f"accuracy on digits ({name}), GPU's below CPU's"
        found.goal(what, accuracies[0] - accuracies[1], "<=", wanted)
        found.notes[f"accuracy ({name}), CPU and GPU"] = list(accuracies)
    return found


def train_digits(where, recipe, steps):
    """The losses of some steps, and the accuracy after epochs behind them."""
    from internals import load_digits

    digits, size = load_digits(), recipe.batch if SMALL else 64
    height, width, _ = recipe.shape
    x, held_out = (a[:, :height, :width] for a in (digits.x, digits.held_out_x))
    count = 16 if SMALL else len(x)
    with mc.device(where):
        nn.set_random_seed(1)
        model = gpu_networks.ours(recipe)
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(nn.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    losses = []
    for step in range(steps):
        at = size * (step % (len(x) // size))
        found = model.train_on_batch(x[at : at + size], digits.y[at : at + size])
        losses.append(found[0])
    epochs = 1 if SMALL else 8
    model.fit(x[:count], digits.y[:count], epochs=epochs, verbose=0, seed=0)
    found = model.evaluate(held_out[:count], digits.held_out_y[:count], verbose=0)
    model.close()
    return losses, float(found[1])


def check_limit():
    """A limit is never exceeded, as the driver's free memory shows."""
    found, limit = Found(), 4 if SMALL else 512
    limit_to(limit)
    recipe = recipe_of("VGG-like")._replace(batch=2 if SMALL else 64)
    x, y = gpu_networks.data(recipe)
    for _ in range(2):  # the second time, libraries and kernels are there
        device().pool.trim()
        before, most = free_mib(), 0.0
        model = compiled(recipe)
        for _ in range(times(20)):
            model.train_on_batch(x, y)
            most = max(most, before - free_mib())
        model.close()
    what = f"taken by training under {limit} MiB, by cuMemGetInfo"
    found.goal(what, most, "<=", limit + SLACK, "MiB")
    device().pool.trim()
    most, refused, before = take_at_random(limit)
    what = f"taken by random blocks under {limit} MiB, by cuMemGetInfo"
    found.goal(what, most, "<=", limit + SLACK, "MiB")
    found.goal("requests refused meanwhile", refused, ">=", 1)
    left = before - free_mib()
    found.goal("not given back by `trim`", left, "<=", SLACK, "MiB")
    found.notes["beside the limit"] = f"{SLACK} MiB for what the driver needs itself"
    return found


def take_at_random(limit):
    """Take and free blocks: (most MiB that the GPU lacked, refusals, free before)."""
    pool, before = device().pool, free_mib()
    generator, blocks, refused, most = np.random.default_rng(0), [], 0, 0.0
    for _ in range(times(5000)):
        if blocks and generator.random() < 0.4:
            blocks.pop(int(generator.integers(len(blocks)))).free()
        try:
            blocks.append(pool.allocate(int(generator.integers(1, limit * MIB // 8))))
        except ResourceExhaustedError:
            refused += 1
        most = max(most, before - free_mib())
    while not refused:
        try:
            blocks.append(pool.allocate(limit * MIB // 8))
        except ResourceExhaustedError:
            refused += 1
        most = max(most, before - free_mib())
    for block in blocks:
        block.free()
    pool.trim()
    return most, refused, before


def check_endurance():
    """10,000 steps, and 100 models made and closed: the memory is that of before."""
    found, steps, models = Found(), times(10_000), times(100)
    recipe = recipe_of("demo")._replace(batch=2 if SMALL else 32)
    x, y = gpu_networks.data(recipe)
    pool = device().pool

    def train(count):
        model = compiled(recipe)
        for _ in range(count):
            model.train_on_batch(x, y)
        return model

    model = train(3)
    held, before = pool.stats().current_bytes, free_mib()
    for _ in range(steps):
        model.train_on_batch(x, y)
    after = pool.stats().current_bytes - held, before - free_mib()
    found.goal(f"more in the pool after {steps:,} steps", after[0], "<=", 0, "B")
    found.goal(f"more of the GPU after {steps:,} steps", after[1], "<=", SLACK, "MiB")
    model.close()
    for _ in range(2):
        train(3).close()
    pool.trim()
    held, before = pool.stats().current_bytes, free_mib()
    for _ in range(models):
        train(3).close()
    pool.trim()
    after = pool.stats().current_bytes - held, before - free_mib()
    what = f"after {models:,} models made and closed"
    found.goal(f"more in the pool {what}", after[0], "<=", 0, "B")
    found.goal(f"more of the GPU {what}", after[1], "<=", SLACK, "MiB")
    return found


# -- seconds ---------------------------------------------------------------------------


def check_steps():
    """Seconds of a step and peak memory beside PyTorch (eager, float32, no TF32).

    Each step uploads its batch from the host and reads the loss. PyTorch's algorithms
    are its default's, and so is its memory.
    """
    names = ("demo", "VGG-like", "ResNet-like")
    peers = {"torch": eager}
    return compare_all_steps(torch_on_gpu(), names, peers, "PyTorch's eager", 1.0)


def check_steps_tuned():
    """The same beside `torch.compile`, with `cudnn.benchmark` from the first step on.

    PyTorch keeps what it has chosen for a shape, so this takes a process of its own.
    """
    peers = {"torch.compile": lambda torch, net: torch.compile(net)}
    peers["torch, cudnn.benchmark"] = eager
    torch = torch_on_gpu()
    if torch is not None:
        torch.backends.cudnn.benchmark = True
    names = ("VGG-like", "ResNet-like")
    return compare_all_steps(torch, names, peers, "torch.compile", 0.9)


def check_steps_tf32():
    """The same in TF32, ours by MEMCFG_CUDA_TF32, which libraries read when loaded."""
    os.environ["MEMCFG_CUDA_TF32"] = "1"
    torch = torch_on_gpu(tf32=True)
    names, peers = ("VGG-like", "ResNet-like"), {"torch": eager}
    try:
        return compare_all_steps(torch, names, peers, "PyTorch's eager, TF32", 1.0)
    finally:
        del os.environ["MEMCFG_CUDA_TF32"]


def eager(torch, net):
    del torch
    return net


def compare_all_steps(torch, names, peers, peer, wanted):
    """Compare networks with PyTorch's; the first of the peers has the goals."""
    found, rows, first = Found(), {}, next(iter(peers))
    for name in names:
        rows[name] = row = compare_steps(torch, recipe_of(name), peers)
        why = "" if torch else NO_TORCH
        ratio, part = row.get(f"{first} / memcfg"), row.get("memory, part of torch's")
        found.time(f"speed of {name}, of {peer}", ratio, ">=", wanted, "x", why=why)
        what = f"peak memory of {name}, of PyTorch's reserved"
        found.goal(what, part, "<=", 0.8, "x", why=why)
    found.notes["steps"] = rows
    return found


def compare_steps(torch, recipe, peers):
    """Times of interleaved steps in milliseconds, and peaks in MiB."""
    x, y = gpu_networks.data(recipe)
    pool = device().pool
    pool.trim()
    pool.reset_peak()
    model = compiled(recipe, mc.plan.share())
    runs = {"memcfg": partial(model.train_on_batch, x, y)}
    reserved = 0.0
    for name, made in peers.items() if torch is not None else ():
        net = gpu_networks.theirs(recipe).cuda()
        count = sum(p.numel() for p in net.parameters() if p.requires_grad)
        own = sum(np.prod(each.shape) for each in model.trainable_weights)
        assert count == own, f"other networks: {count} and {own} weights"
        runs[name] = gpu_networks.torch_step(torch, made(torch, net), x, y)
        if not reserved:
            torch.cuda.reset_peak_memory_stats()
            for _ in range(4):
                runs[name]()
            reserved = torch.cuda.max_memory_reserved() / MIB
    for run in runs.values():
        for _ in range(3):
            run()
    taken = {name: [] for name in runs}
    for _ in range(2 if SMALL else 15):
        for name, run in runs.items():
            taken[name].append(seconds(run))
    middle = {name: statistics.median(each) for name, each in taken.items()}
    row = {"batch": recipe.batch}
    row |= {f"{name}, ms": 1e3 * value for name, value in middle.items()}
    row["memcfg, peak MiB"] = pool.stats().peak_reserved_bytes / MIB
    if torch is not None:
        row["torch, reserved MiB"] = reserved
        row |= {f"{name} / memcfg": middle[name] / middle["memcfg"] for name in peers}
        row["memory, part of torch's"] = row["memcfg, peak MiB"] / reserved
        del net, runs, run
        gc.collect()
        torch.cuda.empty_cache()
    model.close()
    return row


def check_profile():
    """Where steps' time goes, kernel by kernel, beside PyTorch's (eager, float32)."""
    torch, found = torch_on_gpu(), Found()
    if torch is None:
        what = "gaps between kernels, of PyTorch's"
        found.time(what, None, "<=", 1.0, "x", why=NO_TORCH)
        return found
    for name in ("VGG-like", "ResNet-like"):
        recipe = recipe_of(name)
        x, y = gpu_networks.data(recipe)
        model = compiled(recipe, mc.plan.share())
        net = gpu_networks.theirs(recipe).cuda()
        runs = {
            "memcfg": partial(model.train_on_batch, x, y),
            "torch": gpu_networks.torch_step(torch, net, x, y),
        }
        found.notes[name] = tables = {}
        for who, run in runs.items():
            for _ in range(4):
                run()
            tables[who] = gpu_profile.profile(torch, run, 10)
        tables["first plans"] = {
            told_window(*of): device().kernels.algorithms(*convolution_of(*of))[0][0]
            for of in windows_of(recipe)
        }
        for what in ("busy", "gaps"):
            ratio = tables["memcfg"][what] / max(tables["torch"][what], 1e-3)
            found.time(f"{what} of {name}, of PyTorch's", ratio, "<=", 1.0, "x")
        model.close()
        del net, runs, run
        gc.collect()
        torch.cuda.empty_cache()
    return found


def check_convolutions():
    """Whether the plans that come first are the fastest of both networks' windows."""
    found, kernels = Found(), device().kernels
    for name in ("VGG-like", "ResNet-like"):
        recipe = recipe_of(name)
        first = best = 0.0
        for (kind, x, y), count in windows_of(recipe).items():
            rows = kernels.measure(*convolution_of(kind, x, y))
            times = [time for *_, time in rows if time]
            found.notes[told_window(kind, x, y)] = {
                plan: 1e3 * time for plan, _, time in rows
            }
            if times:
                first += count * times[0]
                best += count * min(times)
        found.time(
            f"first plans of {name}'s convolutions, of the fastest",
            first / best if best else None,
            *("<=", 1.1, "x"),
            why="" if best else "no memory to measure in",
        )
    return found


def windows_of(recipe):
    """How often a network has each convolution: its kind, and shapes of its images."""
    counts = {}
    height, width, channels = recipe.shape

    def count(filters):
        nonlocal channels
        x, y = ((recipe.batch, height, width, each) for each in (channels, filters))
        kinds = ["conv2d", "conv2d_gradient_kernel"]
        if channels != recipe.shape[2]:
            kinds.append("conv2d_gradient_input")
        for kind in kinds:
            counts[kind, x, y] = counts.get((kind, x, y), 0) + 1
        channels = filters

    for kind, *sizes in recipe.steps:
        if kind == "conv":
            count(sizes[0])
        elif kind == "block":
            count(sizes[0])
            count(sizes[0])
        elif kind == "pool":
            height, width = height // 2, width // 2
    return counts


def told_window(kind, x, y):
    return f"{kind} of {'x'.join(map(str, x))} to {y[3]}"


def convolution_of(kind, x, y):
    """Return the op, a window of 3 x 3, and its operands."""
    kernel = (3, 3, x[3], y[3])
    window = {
        "strides": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "dilation": (1, 1),
        "groups": 1,
    }
    shapes = {
        "conv2d": (x, kernel, y),
        "conv2d_gradient_input": (kernel, y, x),
        "conv2d_gradient_kernel": (x, y, kernel),
    }[kind]
    if kind != "conv2d":
        of = "input" if kind.endswith("input") else "kernel"
        window[f"{of}_shape"] = shapes[2]
    *inputs, output = (OperandSpec(shape, "float32") for shape in shapes)
    return kind, window, inputs, [output]


def seconds(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def check_biases():
    """Whether plans without a bias and a kernel behind them are rightly the first."""
    found = Found()
    images = [(1, 6, 6, 4)] if SMALL else [(32, 56, 56, 64), (32, 14, 14, 256)]
    for n, h, w, channels in images:
        for size in (1, 3):
            pad = (size // 2, size // 2)
            window = {
                "strides": (1, 1),
                "padding": (pad, pad),
                "dilation": (1, 1),
                "groups": 1,
            }
            shapes = ((n, h, w, channels), (size, size, channels, channels))
            specs = [OperandSpec(shape, "float32") for shape in (*shapes, (channels,))]
            rows = device().kernels.measure("conv2d_bias", window, specs, specs[:1])
            plans = {
                apart: [
                    time
                    for name, _, time in rows
                    if name.startswith("cudnn") and name.endswith("+bias") == apart
                ]
                for apart in (True, False)
            }
            what = f"{size}x{size} of {n}x{h}x{w}x{channels}"
            found.notes[what] = {name: time for name, _, time in rows}
            both = plans[True] and plans[False]
            found.time(
                f"bias behind cuDNN's plans, of their own, {what}",
                min(plans[True]) / min(plans[False]) if both else None,
                *("<=", 1.0, "x"),
                why="" if both else "cuDNN has no plans for both",
            )
    return found


def check_allocations():
    """Nanoseconds of an allocation and its free, beside PyTorch's caching allocator."""
    found, torch, count = Found(), torch_on_gpu(), times(20_000)
    pool = device().pool
    peer = torch and torch._C._cuda_cudaCachingAllocator_raw_alloc
    drop = torch and torch._C._cuda_cudaCachingAllocator_raw_delete

    def own(size):
        for _ in range(count):
            pool.allocate(size).free()

    def other(size):
        for _ in range(count):
            drop(peer(size, 0))

    for size in (256, 64 << 10, 4 * MIB):
        calls = {"memcfg": own, "PyTorch": other} if torch else {"memcfg": own}
        best = dict.fromkeys(calls, np.inf)
        for _ in range(5):
            for name, call in calls.items():
                best[name] = min(best[name], seconds(partial(call, size)) / count)
        found.time(
            f"alloc + free of {size:,} B, of PyTorch's time",
            best["memcfg"] / best["PyTorch"] if torch else None,
            *("<=", 1.0, "x"),
            why="" if torch else NO_TORCH,
        )
        found.notes[f"{size} B, ns"] = {n: 1e9 * value for n, value in best.items()}
    return found


def check_copies():
    """Copies both ways beside compute: their bandwidth, and what compute loses."""
    found, piece = Found(), MIB // 4 if SMALL else 128 * MIB
    alone, both = measure_raw(piece)
    count = 2 if SMALL else 8  # copies each way
    least = count * piece / min(both)  # seconds that they take
    one = trace(piece, 1, 0)["compute"]
    products = 2 if SMALL else int(np.clip(1.5 * least / one, 4, 5000))
    rows = [
        (trace(piece, products, 0), trace(piece, products, count))
        for _ in range(1 if SMALL else 5)
    ]
    slower = statistics.median(b["compute"] / a["compute"] for a, b in rows) - 1
    for way, raw in zip(("to the GPU", "from the GPU"), both, strict=True):
        took = statistics.median(row[way] for _, row in rows)
        rate = count * piece / took
        what = f"copies {way} beside compute, of raw cuMemcpyAsync both ways"
        found.time(what, rate / raw, ">=", 0.9, "x")
        found.notes[f"{way}, GiB/s"] = {
            "beside compute": rate / 2**30,
            "raw, both ways": raw / 2**30,
            "raw, alone": alone[way] / 2**30,
        }
    found.time("compute beside copies is slower by", slower, "<=", 0.03)
    found.notes["milliseconds of compute"] = 1e3 * rows[0][0]["compute"]
    return found


def trace(piece, products, copies):
    """Seconds of queues of a program: products of matrices, and copies both ways."""
    where, size = device(), 64 if SMALL else 4096
    matrix = OperandSpec((size, size), "float32")
    kernel = where.kernels.make("dense", {}, [matrix, matrix], [matrix])
    scratch = 3 * matrix.nbytes
    data = scratch + -(-kernel.scratch_bytes // 256) * 256
    arena = where.pool.arena(tag="report")
    arena.grow(data + 2 * piece)
    host = where.tier_memory("host", 2 * piece, tag="report")
    program = where.program(arena, {"host": host})
    places = [0, matrix.nbytes, 2 * matrix.nbytes]
    needed = scratch if kernel.scratch_bytes else None
    for index in range(max(products, copies)):
        if index < products:
            sizes = [matrix.nbytes] * 3
            program.compute(kernel.instruction(), places, sizes, needed)
        if index < copies:
            program.copy(1, (0, data), (1, 0), piece)
            program.copy(2, (1, piece), (0, data + piece), piece)
    program.run()
    spans = {}
    for queue, begin, end in program.run_traced():
        spans.setdefault(queue, []).append((begin, end))
    names = {0: "compute", 1: "from the GPU", 2: "to the GPU"}
    taken = {
        names[queue]: max(max(e for _, e in each) - min(b for b, _ in each), 1e-9)
        for queue, each in spans.items()
    }
    del program
    arena.free()
    host.free()
    return taken


def measure_raw(piece):
    """Bytes a second of the driver's copies: each way alone, and (to, from) at once."""
    where = device()
    here = where.host_pool.allocate(2 * piece, tag="report")
    there = where.pool.allocate(2 * piece, tag="report")
    streams = [CudaStream(where.context) for _ in range(2)]
    ways = [
        (streams[0], there.address, here.address),
        (streams[1], here.address + piece, there.address + piece),
    ]
    copy = raw_copy()

    def rates(chosen, count=2 if SMALL else 8):
        spans = [
            [CudaEvent(where.context, timing=True) for _ in range(2)] for _ in chosen
        ]
        for (stream, *_), (begin, _) in zip(chosen, spans, strict=True):
            stream.record(begin)
        for _ in range(count):
            for stream, target, source in chosen:
                where.context.call(partial(copy, target, source, piece, stream.handle))
        for (stream, *_), (_, end) in zip(chosen, spans, strict=True):
            stream.record(end)
        for stream, *_ in chosen:  # behind all records: the host waits for one
            stream.synchronize()
        return [
            count * piece / max(end.seconds_since(begin), 1e-9) for begin, end in spans
        ]

    def best(chosen):
        return [
            max(each) for each in zip(*(rates(chosen) for _ in range(3)), strict=True)
        ]

    alone = {"to the GPU": best(ways[:1])[0], "from the GPU": best(ways[1:])[0]}
    both = best(ways)
    here.free()
    there.free()
    return alone, both


def raw_copy():
    """The driver's cuMemcpyAsync, with nothing of memcfg around it."""
    library = ctypes.CDLL(os.environ.get("MEMCFG_CUDA_LIBRARY") or "libcuda.so.1")
    call = library.cuMemcpyAsync
    call.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]

    def copy(target, source, nbytes, stream):
        status = call(target, source, nbytes, stream)
        assert status == 0, status

    return copy


ORDER = (  # what is short, and what others need, first
    *(
        "one_context",
        "torch_in_the_pool",
        "torch_budget",
        "torch_estimate",
        "torch_offload",
        "torch_saved",
        "limit",
        "digits",
        "steps",
        "steps_tf32",
        "steps_tuned",
        "profile",
        "convolutions",
        "allocations",
    ),
    *("biases", "copies", "endurance", "tests"),
)
CHECKS = {name: globals()[f"check_{name}"] for name in ORDER}
