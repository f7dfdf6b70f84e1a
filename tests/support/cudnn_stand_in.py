"""The tests' cuDNN: what memcfg calls of its front end, on the driver's stand-in.

A convolution is a kernel on the handle's stream. Who breaks a rule gets a RuntimeError
that says which, as of a status of cuDNN's.
"""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import contextmanager
from math import prod
from types import SimpleNamespace

from cuda_compiler import compile_on_host
from cuda_stand_in import driver_path

from memcfg.devices.cuda.libraries._cudnn import Cudnn

# All of the workspace is written; sums are made there, if there is any.
KERNEL = """
__device__ float rounded(float x, int tf32) {
  return tf32 ? __int_as_float((__float_as_int(x) + 0x1000) & ~0x1fff) : x;
}
struct Tensor {
  long long dim[4], stride[4];
  __device__ long long at(long long a, long long b, long long c, long long d) const {
    return a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
  }
};
struct Window {
  long long stride[2], dilation[2], pre[2];
};
extern "C" __global__ void __launch_bounds__(1)
convolution(
    float* x, float* w, float* y, float* part, unsigned long long part_bytes,
    Tensor tx, Tensor tw, Tensor ty, Window window, int out, int tf32,
    const float* bias) {
  for (unsigned long long i = 0; i < part_bytes / 4; ++i) {
    part[i] = __int_as_float(0x7fc00000);
  }
  const Tensor& made = out == 0 ? tx : out == 1 ? tw : ty;
  float* const target = out == 0 ? x : out == 1 ? w : y;
  float* const sums = part_bytes ? part : target;
  const long long size = made.dim[0] * made.dim[1] * made.dim[2] * made.dim[3];
  for (long long i = 0; i < size; ++i) sums[i] = 0.0f;
  const long long group = tw.dim[1], units = tw.dim[0] / (tx.dim[1] / group);
  for (long long n = 0; n < ty.dim[0]; ++n)
  for (long long k = 0; k < ty.dim[1]; ++k)
  for (long long p = 0; p < ty.dim[2]; ++p)
  for (long long q = 0; q < ty.dim[3]; ++q)
  for (long long c = 0; c < group; ++c)
  for (long long r = 0; r < tw.dim[2]; ++r)
  for (long long s = 0; s < tw.dim[3]; ++s) {
    const long long h = p * window.stride[0] + r * window.dilation[0] - window.pre[0];
    const long long v = q * window.stride[1] + s * window.dilation[1] - window.pre[1];
    if (h < 0 || h >= tx.dim[2] || v < 0 || v >= tx.dim[3]) continue;
    const long long ix = tx.at(n, k / units * group + c, h, v);
    const long long iw = tw.at(k, c, r, s), iy = ty.at(n, k, p, q);
    if (out == 0) sums[ix] += rounded(w[iw], tf32) * rounded(y[iy], tf32);
    if (out == 1) sums[iw] += rounded(x[ix], tf32) * rounded(y[iy], tf32);
    if (out == 2) sums[iy] += rounded(x[ix], tf32) * rounded(w[iw], tf32);
  }
  for (long long i = 0; i < size; ++i) {
    target[i] = bias ? sums[i] + bias[i % ty.dim[1]] : sums[i];  // channels are last
  }
}
"""

TOO_LARGE = (64 << 20) + 256
ENGINES = {"y": "eng70", "x": "eng74", "w": "eng17"}  # by what they make
STAGED = "eng70_k2=4"  # a convolution that has its sums in a workspace
PLAIN = "eng28"  # has none
PLANS = (  # name, numerical notes, and bytes of workspace for images and sums
    ("eng9_k2=0", {"NONDETERMINISTIC"}, lambda images, count: 0),
    ("eng5_k1=3", {"TENSOR_CORE", "DOWN_CONVERT_INPUTS"}, lambda images, count: 0),
    ("eng7", set(), lambda images, count: TOO_LARGE),
    ("jit[None]", set(), lambda images, count: 0),  # not cuDNN's
    ("eng3_k2=1", set(), lambda images, count: 0),  # which does not build
    ("{}_k2=4", set(), lambda images, count: 4 * count + 40 * images),
    ("eng0", set(), lambda images, count: 0),
    (PLAIN, set(), lambda images, count: 0),
    ("{}_k2=4", set(), lambda images, count: 4 * count + 40 * images),
)
UNSUPPORTED, REFUSED = 13, 17  # units of kernels


class NotSupportedError(Exception):
    """There is no plan for a graph."""


class Packed(ctypes.Structure):
    _fields_ = (("dim", ctypes.c_longlong * 4), ("stride", ctypes.c_longlong * 4))


class PackedWindow(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_longlong * 2) for name in ("stride", "dilation", "pre")
    )


def need(condition, what):
    if not condition:
        raise RuntimeError(f"CUDNN_STATUS_BAD_PARAM; Reason: {what}\nand more")


class Tensor:
    def __init__(self, dim=None, stride=None):
        self.dim, self.stride, self.output, self.kind = dim, stride, False, None

    def set_output(self, on):
        self.output = on
        return self

    def set_data_type(self, kind):
        self.kind = kind
        return self

    def set_dim(self, dim):
        self.dim = dim
        return self

    def set_stride(self, stride):
        self.stride = stride
        return self

    def check(self, what):
        need(self.kind == "float32", f"{what} has no type")
        order = sorted(range(4), key=lambda i: (-self.stride[i], -self.dim[i]))
        step = 1
        for i in reversed(order):
            need(self.dim[i] == 1 or self.stride[i] == step, f"{what} is not packed")
            step *= self.dim[i]
        need(self.stride[1] == 1, f"{what} does not have its channels last")

    @property
    def packed(self):
        return Packed((ctypes.c_longlong * 4)(*self.dim), tuple(self.stride))


class Graph:
    def __init__(self, module, handle, **kinds):
        module.check_handle(handle)
        need(set(kinds.values()) == {"float32"}, "types")
        self.module, self.notes, self.limit = module, set(), float("inf")
        self.places = {}  # "x", "w", "y": tensors
        self.added = None  # the bias
        self.planned, self.built = False, set()

    def tensor(self, *, name, dim, stride, data_type):
        need(name, "a tensor has no name")
        return Tensor(dim, stride).set_data_type(data_type)

    def _convolution(self, made, out, pre_padding, post_padding, stride, dilation):
        self.places, self.out = made, made[out]
        self.order = list(made)
        self.window = SimpleNamespace(
            pre=pre_padding, post=post_padding, stride=stride, dilation=dilation
        )
        return self.out

    def conv_fprop(self, *, image, weight, **window):
        return self._convolution(
            {"x": image, "w": weight, "y": Tensor()}, "y", **window
        )

    def conv_dgrad(self, *, loss, filter, **window):  # noqa: A002 - cuDNN's name
        return self._convolution({"x": Tensor(), "w": filter, "y": loss}, "x", **window)

    def conv_wgrad(self, *, image, loss, **window):
        return self._convolution({"x": image, "w": Tensor(), "y": loss}, "w", **window)

    def bias(self, *, input, bias):  # noqa: A002 - cuDNN's name
        need(input is self.places["y"] is self.out, "a bias of something else")
        need(not (input.output or input.kind), "an output between two nodes")
        self.added, self.out = bias, Tensor()
        self.places["y"] = self.out
        return self.out

    def validate(self):
        self.module.call("validate")
        if self.added is not None:
            self.added.check("bias")
            need(not self.added.output, "a bias that is an output")
            need(self.added.dim == [1, self.out.dim[1], 1, 1], "the bias' size")
        for what, each in self.places.items():
            each.check(what)
            need(each.output == (each is self.out), f"{what}: output or input")

    def build_operation_graph(self):
        self.module.call("build_operation_graph")
        x, w, y = (self.places[name].dim for name in "xwy")
        need(y[0] == x[0] and y[1] == w[0] and x[1] % w[1] == 0, "sizes")
        need(w[0] % (x[1] // w[1]) == 0, "groups")
        for i in (0, 1):
            a = self.window
            room = x[2 + i] + a.pre[i] + a.post[i] - a.dilation[i] * (w[2 + i] - 1) - 1
            need(y[2 + i] == room // a.stride[i] + 1, "sizes of images")
        need(w[0] != REFUSED, "17 units")

    def create_execution_plans(self, modes):
        self.module.call("create_execution_plans")
        self.module.searches += 1
        need(modes == ["A", "B", "FALLBACK"], "modes")
        if self.places["w"].dim[0] == UNSUPPORTED:
            raise NotSupportedError("No valid engine configs")
        self.planned = True

    def deselect_numeric_notes(self, notes):
        need(self.planned, "there is nothing to deselect")
        self.notes |= set(notes)

    def deselect_workspace_greater_than(self, limit):
        self.limit = limit

    def get_execution_plan_count(self):
        return len(PLANS)

    def get_plan_name_at_index(self, index):
        (made,) = (name for name in "xwy" if self.places[name] is self.out)
        return PLANS[index][0].format(ENGINES[made])

    def build_plan_at_index(self, index):
        self.module.call("build_plan_at_index")
        name, notes, _ = PLANS[index]
        if notes & self.notes:
            raise RuntimeError("Deselecting execution plan")
        if self._workspace(index) > self.limit:
            raise RuntimeError("Skipping plan since workspace violation")
        if name.startswith("eng3"):
            raise NotSupportedError("not for this GPU")
        self.built.add(index)

    def _workspace(self, index):
        return PLANS[index][2](self.places["x"].dim[0], prod(self.out.dim))

    def get_workspace_size_plan_at_index(self, index):
        need(index in self.built, "a plan that was not built")
        return self._workspace(index)

    def execute_plan_at_index(self, pack, workspace, index, handle):
        with self.module.alone():
            self.module.call("execute_plan_at_index")
            self.module.check_handle(handle)
            need(index in self.built, "a plan that was not built")
            tensors = {*self.places.values()}
            if self.added is not None:
                tensors.add(self.added)
            need(pack.keys() == tensors, "tensors")
            addresses = [pack[self.places[name]] for name in "xwy"]
            bias = None if self.added is None else pack[self.added]
            need(all(each and each % 16 == 0 for each in pack.values()), "alignment")
            size = self._workspace(index)
            need(bool(workspace) == bool(size), "a workspace that is needed, or not")
            need(workspace % 256 == 0, "alignment of the workspace")
            tf32 = "TENSOR_CORE" in PLANS[index][1]
            out = [self.places[name] is self.out for name in "xwy"].index(True)
            tensors = [self.places[name].packed for name in "xwy"]
            a = self.window
            window = PackedWindow(tuple(a.stride), tuple(a.dilation), tuple(a.pre))
            pointers = [ctypes.c_void_p(each) for each in (*addresses, workspace)]
            numbers = (ctypes.c_int(out), ctypes.c_int(tf32))
            arguments = (
                *(*pointers, ctypes.c_ulonglong(size)),
                *(*tensors, window, *numbers, ctypes.c_void_p(bias)),
            )
            handle.launch(arguments)
            self.module.executed.append(self.get_plan_name_at_index(index))


class Handle:
    def __init__(self):
        self._driver = ctypes.CDLL(driver_path())
        self._module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        image = os.fsencode(compile_on_host(KERNEL))
        status = self._driver.cuModuleLoadData(ctypes.byref(self._module), image)
        need(status == 0, "no context is current")
        found = ctypes.byref(self._function)
        assert (
            self._driver.cuModuleGetFunction(found, self._module, b"convolution") == 0
        )
        self.stream = None

    def launch(self, arguments):
        need(self.stream, "no stream")
        addresses = [ctypes.addressof(each) for each in arguments]
        packed = (ctypes.c_void_p * len(addresses))(*addresses)
        shape = [ctypes.c_uint(1)] * 6
        status = self._driver.cuLaunchKernel(
            *(self._function, *shape, ctypes.c_uint(0)),
            *(ctypes.c_void_p(self.stream), packed, None),
        )
        need(status == 0, f"CUDNN_STATUS_EXECUTION_FAILED ({status})")

    def destroy(self):
        need(self._driver.cuModuleUnload(self._module) == 0, "unload")


class StandIn:
    """The module; `fails` names a function that shall fail."""

    __version__ = "1.28.0"
    capability = 80  # of the GPU that it plans for
    cudnnGraphNotSupportedError = NotSupportedError  # noqa: N815
    data_type = SimpleNamespace(FLOAT="float32")
    heur_mode = SimpleNamespace(A="A", B="B", FALLBACK="FALLBACK")
    numerical_note = SimpleNamespace(
        **{
            name: name
            for name in (
                *("NONDETERMINISTIC", "DOWN_CONVERT_INPUTS", "TENSOR_CORE"),
                *("REDUCED_PRECISION_REDUCTION", "FFT", "WINOGRAD"),
            )
        }
    )

    def __init__(self):
        self.handles, self.searches, self.executed = set(), 0, []
        self.fails, self.streams = None, []
        self._busy = threading.Lock()

    def call(self, name):
        if name == self.fails:
            raise RuntimeError(f"{name} failed: CUDNN_STATUS_INTERNAL_ERROR\nand more")

    @contextmanager
    def alone(self):
        need(self._busy.acquire(blocking=False), "two threads at once")
        try:
            yield
        finally:
            self._busy.release()

    def check_handle(self, handle):
        need(handle in self.handles, "no handle")

    def backend_version(self):
        return 92801

    def create_handle(self):
        self.call("create_handle")
        made = Handle()
        self.handles.add(made)
        return made

    def destroy_handle(self, handle):
        self.check_handle(handle)
        self.handles.remove(handle)
        handle.destroy()

    def set_stream(self, handle, stream):
        """Skip the number that it was given last, as the front end does."""
        self.check_handle(handle)
        if handle.stream != stream:
            handle.stream = stream
            self.streams.append(stream)

    def pygraph(self, **options):
        return Graph(self, **options)

    def load(self, context):
        """Load it for a GPU of the stand-in."""
        return Cudnn(context, self, self.capability)
