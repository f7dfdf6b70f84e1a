"""Convolutions by cuDNN's Python front end, with the caller's workspace.

The front end is imported, and loads the library, at the first convolution of a GPU.
Images are [N, H, W, C] on both sides. Kernels are [KH, KW, C / groups, O] here and
[O, KH, KW, C / groups] in cuDNN: a generated kernel transposes them in scratch.

See docs/decisions/0028-cuda-libraries-by-hand.md.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from memcfg._first_line import first_line
from memcfg.devices._contract import OperandSpec
from memcfg.devices._packaged_library import packaged_library
from memcfg.devices._switch import asks_for_tf32
from memcfg.devices.cuda._bound_launch import Bound, bind_source
from memcfg.devices.cuda._convolution_ranks import ranked, workspace_limit
from memcfg.devices.cuda._sources import CudaSource, cuda_source
from memcfg.errors import KernelError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from memcfg._core import CudaContext, CudaStream
    from memcfg.devices.cuda._convolution_spec import ConvolutionSpec

_VARIABLE = "MEMCFG_CUDNN"
_VALUES = ("auto", "required", "none")
_PACKAGES = {13: "nvidia-cudnn-cu13", 12: "nvidia-cudnn-cu12"}  # by the CUDA version

_LIBRARY = "libcudnn.so.9"

_ALIGNMENT = 256  # bytes; of a workspace, and of a kernel in scratch
_PLANS = 8  # max. plans that are listed of a convolution
_DIVIDED = ((1, 8), (2, 256))  # (first plans to try, max. parts of the batch)
_VECTOR = 16  # bytes; cuDNN's alignment of images

# Engines with correct results where padding before and after differ (cuDNN 9.19, H100):
# engine 50 of input gradients, and 1 and 18 of kernel gradients were wrong.
_LOPSIDED = {
    "conv2d": ("eng0", "eng70"),
    "conv2d_bias": (),
    "conv2d_gradient_input": ("eng0", "eng74"),
    "conv2d_gradient_kernel": ("eng0", "eng17", "eng67"),
}
_WIDE, _MANY = "eng67", 4  # 4 to 18 times slower than others below so many channels
_DIRECT = "eng0"  # a loop: 7 to 100 times slower than others, unless there are groups

# Heuristics, in order. Mode A alone has no plan for some forward passes on an H100
# without TF32.
_MODES = ("A", "B", "FALLBACK")
_REFUSED = ("NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION")  # numerical notes
_REFUSED_IN_FLOAT32 = ("DOWN_CONVERT_INPUTS", "TENSOR_CORE")


class Cudnn:
    """The library in the context of a GPU.

    Parameters
    ----------
    context : CudaContext
        The GPU's context.
    module : module
        The front end, `cudnn`.
    capability : int
        The GPU's compute capability: 90 is 9.0.

    Raises
    ------
    KernelError
        If the library does not work with the GPU.
    """

    def __init__(self, context: CudaContext, module: Any, capability: int) -> None:
        self._context = context
        self._module = module
        self._capability = capability
        self._tf32 = asks_for_tf32()
        notes = _REFUSED if self._tf32 else (*_REFUSED, *_REFUSED_IN_FLOAT32)
        self._refused = [getattr(module.numerical_note, name) for name in notes]
        self._modes = [getattr(module.heur_mode, name) for name in _MODES]
        self._lock = threading.Lock()  # not used in a forked child: no context there
        self._found: dict[tuple[ConvolutionSpec, int], _Found] = {}
        # Weak reference to the handle's stream, and that stream's number.
        self._stream: Callable[[], CudaStream | None] = _nowhere
        self._number = 0
        self.version: int = module.backend_version()  # 92801 is 9.28.1
        self.front_end_version: str = module.__version__
        try:
            self._handle = context.call(module.create_handle)
        except Exception as error:
            raise KernelError(f"cuDNN does not work: {_line(error)}") from error
        ends = (context, module, self._handle, self._found)
        weakref.finalize(self, _destroy, *ends).atexit = False

    def choices(self, spec: ConvolutionSpec) -> Iterator[ChosenConvolution]:
        """Yield the algorithms of a convolution in a fixed order, the default first.

        If the first plans exceed the limit of workspace, those for a part of the batch
        at a time come first.
        """
        turned = _turned(spec)
        most = workspace_limit(spec)
        images = self._context.call(partial(self._images, spec, most))
        for size in dict.fromkeys((images, spec.images)):
            for number in range(_PLANS):
                plan = self._context.call(
                    partial(self._plan, spec.of(size), most, number)
                )
                if plan is None:
                    break
                yield ChosenConvolution(self, spec, plan, size, turned)

    def convolve(
        self,
        plan: ConvolutionPlan,
        addresses: Sequence[int],
        workspace: int,
        stream: CudaStream,
    ) -> None:
        """Enqueue a plan with operands at these addresses on a stream."""
        self._context.call(partial(self._execute, plan, addresses, workspace, stream))

    def _execute(
        self,
        plan: ConvolutionPlan,
        addresses: Sequence[int],
        workspace: int,
        stream: CudaStream,
    ) -> None:
        pack = dict(zip(plan.tensors, addresses, strict=True))
        with self._lock:
            try:
                self._use(stream)
                plan.graph.execute_plan_at_index(
                    pack, workspace, plan.index, self._handle
                )
            except Exception as error:  # the front end raises several classes
                raise KernelError(f"cuDNN, {plan.name}: {_line(error)}") from error

    def _use(self, stream: CudaStream) -> None:
        """Set the stream of the handle; the lock is held.

        The front end ignores a stream with the same number as the last one, which may
        have been destroyed and its number reused: set another stream in between.
        """
        if self._stream() is stream:
            return
        self._stream = _nowhere
        if self._number == stream.handle:
            self._module.set_stream(self._handle, 0)
        self._module.set_stream(self._handle, stream.handle)
        self._number, self._stream = stream.handle, weakref.ref(stream)

    def _plan(
        self, spec: ConvolutionSpec, most: int, number: int
    ) -> ConvolutionPlan | None:
        """Return plan `number` of those that work, counted from 0; None after all."""
        with self._lock:
            return self._known(spec, most).plan(number)

    def _images(self, spec: ConvolutionSpec, most: int) -> int:
        """Return the number of images that a plan processes at a time.

        It is all images if the workspace of the first plan is within the limit; else
        the largest divisor of the batch for which it is, in at most 8 parts; else the
        same with the better of the first two plans, in at most 256 parts. Workspaces
        grow with the images.
        """
        with self._lock:
            for count, parts in _DIVIDED:
                size: int | None = spec.images
                while size is not None and spec.images // size <= parts:
                    least = self._known(spec.of(size), most).least_bytes(count)
                    if least is None:
                        return spec.images
                    if least <= most:
                        return size
                    size = _divisor(spec, size * most // least)
            return spec.images

    def _known(self, spec: ConvolutionSpec, most: int) -> _Found:
        if (spec, most) not in self._found:
            self._found[spec, most] = self._search(spec, most)
        return self._found[spec, most]

    def _search(self, spec: ConvolutionSpec, most: int) -> _Found:
        """Search for deterministic plans; there may be none."""
        kind = self._module.data_type.FLOAT
        kinds = ("io_data_type", "intermediate_data_type", "compute_data_type")
        try:
            graph = self._module.pygraph(
                handle=self._handle, **dict.fromkeys(kinds, kind)
            )
            tensors = _write(graph, spec, kind)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans(self._modes)
            graph.deselect_numeric_notes(self._refused)
            count = graph.get_execution_plan_count()
            names = [graph.get_plan_name_at_index(index) for index in range(count)]
        except self._module.cudnnGraphNotSupportedError:
            return _Found(None, (), [], most)
        except Exception as error:
            _warn(f"cuDNN refuses {_describe(spec)}: {_line(error)}.")
            return _Found(None, (), [], most)
        first: dict[str, int] = {}
        for index, name in enumerate(names):
            if _may_run(name, spec):
                first.setdefault(name, index)
        order = ranked(first, spec, self._capability, tf32=self._tf32)
        return _Found(graph, tensors, [(name, first[name]) for name in order], most)


@dataclass(frozen=True, eq=False)
class ConvolutionPlan:
    """A built plan of a graph."""

    graph: Any
    tensors: tuple[Any, ...]  # inputs, then the output
    index: int
    name: str  # cuDNN's name: the engine and its options
    workspace_bytes: int


@dataclass
class _Found:
    """A graph, its candidate plans, and the working plans, built on demand."""

    graph: Any
    tensors: tuple[Any, ...]
    left: list[tuple[str, int]]  # candidates: names and indices
    most: int  # bytes of workspace
    best: list[ConvolutionPlan] | None = None  # the first plans, with any workspace
    built: list[ConvolutionPlan] = field(
        default_factory=list
    )  # plans within the limit of workspace

    def least_bytes(self, count: int) -> int | None:
        """Return the least workspace of the first plans; None if there are none."""
        first = self._first()[:count]
        return min((plan.workspace_bytes for plan in first), default=None)

    def plan(self, number: int) -> ConvolutionPlan | None:
        self._first()
        while len(self.built) <= number and self.left:
            self._build()
        return self.built[number] if number < len(self.built) else None

    def _first(self) -> list[ConvolutionPlan]:
        if self.best is None:
            self.best = []
            while len(self.best) < _DIVIDED[-1][0] and self.left:
                self.best += filter(None, [self._build()])
            if self.left:
                self.graph.deselect_workspace_greater_than(self.most)
        return self.best

    def _build(self) -> ConvolutionPlan | None:
        name, index = self.left.pop(0)
        try:
            self.graph.build_plan_at_index(index)
            size = self.graph.get_workspace_size_plan_at_index(index)
        except Exception:  # deselected, or not supported by this GPU
            return None
        made = ConvolutionPlan(self.graph, self.tensors, index, name, size)
        if size <= self.most:
            self.built.append(made)
        return made


@dataclass(frozen=True, eq=False)
class ChosenConvolution:
    """A convolution with its plan, and the source that transposes the kernel, if any.

    The plan may process a part of the images at a time. Gradients of kernels, which are
    sums over images, are then accumulated over the parts.
    """

    library: Cudnn
    spec: ConvolutionSpec
    plan: ConvolutionPlan
    images: int
    turned: CudaSource | None

    @property
    def algorithm(self) -> str:
        """The name of the algorithm, stable for a library and a GPU."""
        name = f"cudnn:{self.plan.name}"
        return name if self.images == self.spec.images else f"{name}/{self.images}"

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch: transposed kernel, partial sums, workspace, alignment."""
        needed = self._kernel_bytes + self._part_bytes + self.plan.workspace_bytes
        return needed + _ALIGNMENT if needed else 0

    @property
    def _kernel_bytes(self) -> int:
        return 0 if self.turned is None else self._aligned_bytes

    @property
    def _part_bytes(self) -> int:
        return self._aligned_bytes if self._sums else 0

    @property
    def _aligned_bytes(self) -> int:
        nbytes = 4 * prod(self.spec.kernel)
        return nbytes + -nbytes % _ALIGNMENT

    @property
    def _sums(self) -> bool:
        """Whether partial gradients are accumulated."""
        return self.spec.kernel_place == 2 and self.images < self.spec.images

    def bind(self, addresses: Sequence[int], scratch: int) -> list[Bound]:
        """Bind it to addresses of operands and scratch."""
        scratch += -scratch % _ALIGNMENT
        part = scratch + self._kernel_bytes
        needs = self.plan.workspace_bytes > 0
        workspace = part + self._part_bytes if needs else 0
        place, own = self.spec.kernel_place, [*addresses]
        if self.turned is not None:
            own[place] = scratch
        made: list[Bound] = []
        for first in range(0, self.spec.images, self.images):
            there = [*own]
            for each, shape in self.spec.places_of_images.items():
                there[each] += 4 * first * prod(shape[1:])
            if first and self._sums:
                there[place] = part
            made.append(BoundConvolution(self, tuple(there), workspace))
            if first and self._sums:
                size = OperandSpec((prod(self.spec.kernel),), "float32")
                add = cuda_source("add", {}, [size, size], [size])
                made += bind_source(add, [own[place], part, own[place]], 0)
        if self.turned is None:
            return made
        if place == 2:
            return [*made, *bind_source(self.turned, [scratch, addresses[place]], 0)]
        return [*bind_source(self.turned, [addresses[place], scratch], 0), *made]


@dataclass(frozen=True, slots=True)
class BoundConvolution(Bound):
    """A convolution bound to the addresses of its operands, in cuDNN's order."""

    chosen: ChosenConvolution
    addresses: tuple[int, ...]
    workspace: int

    def issue(self, stream: CudaStream) -> None:
        """Enqueue the work on a stream."""
        chosen = self.chosen
        chosen.library.convolve(chosen.plan, self.addresses, self.workspace, stream)


def load_cudnn(context: CudaContext) -> Cudnn | None:
    """Load the library for a GPU; return None, with a warning, if it is missing.

    Raises
    ------
    KernelError
        If ``MEMCFG_CUDNN`` is ``required`` and the library does not work; if the value
        of ``MEMCFG_CUDNN`` is unknown; or if ``MEMCFG_CUDA_TF32`` is neither 0 nor 1.
    MissingDependencyError
        If ``MEMCFG_CUDNN`` is ``required`` and the library is missing.

    Warns
    -----
    RuntimeWarning
        If the library is missing, or does not work with this GPU; once a process.
    """
    wanted = os.environ.get(_VARIABLE, "") or "auto"
    if wanted not in _VALUES:
        raise KernelError(f"{_VARIABLE} is {wanted!r}; it takes {', '.join(_VALUES)}")
    asks_for_tf32()
    if wanted == "none":
        return None
    try:
        driver = context.driver
        gpu = driver.info(context.ordinal)
        return Cudnn(context, find_cudnn(driver.version), gpu.capability)
    except (KernelError, MissingDependencyError) as error:
        if wanted == "required":
            raise
        _warn(str(error))
        return None


def find_cudnn(cuda: int) -> Any:
    """Import cuDNN's front end, which finds the library.

    Parameters
    ----------
    cuda : int
        The driver's CUDA version: 13000 is 13.0. It also runs older libraries.

    Raises
    ------
    MissingDependencyError
        If the front end or the library is missing.
    """
    majors = [major for major in _PACKAGES if major <= cuda // 1000]
    for major in (
        majors
    ):  # loaded first, as the front end looks only next to itself and for loaded ones
        path = packaged_library(_PACKAGES[major], _LIBRARY)
        if path is not None:
            with suppress(OSError):
                ctypes.CDLL(path)
            break
    try:
        import cudnn
    except ImportError as error:
        raise MissingDependencyError(
            "cuDNN's front end was not found: `pip install "
            f"'nvidia-cudnn-frontend<1.29'` ({error})."
        ) from None
    except OSError:  # early front ends load the library on import
        cudnn = None
    with suppress(RuntimeError):  # later ones at the first call
        if cudnn is not None and cudnn.backend_version():
            return cudnn
    package = _PACKAGES[majors[0] if majors else min(_PACKAGES)]
    raise MissingDependencyError(
        f"cuDNN was not found: install it with `pip install {package}`."
    )


def _write(graph: Any, spec: ConvolutionSpec, kind: Any) -> tuple[Any, ...]:
    """Add a convolution to a graph; return its tensors in the order of the operands."""
    made: tuple[Any, ...]
    rows, columns, channels, units = spec.kernel
    kernel = (units, rows, columns, channels)
    (top, bottom), (left, right) = spec.padding
    window = {
        "pre_padding": [top, left],
        "post_padding": [bottom, right],
        "stride": [*spec.strides],
        "dilation": [*spec.dilation],
    }

    def tensor(name: str, shape: tuple[int, ...]) -> Any:
        dim, stride = _described(shape)
        return graph.tensor(name=name, dim=dim, stride=stride, data_type=kind)

    match spec.op_type:
        case "conv2d" | "conv2d_bias":
            made = (tensor("x", spec.x), tensor("kernel", kernel))
            out = graph.conv_fprop(image=made[0], weight=made[1], **window)
            if spec.op_type == "conv2d_bias":
                made = (*made, tensor("bias", (1, 1, 1, units)))
                out = graph.bias(input=out, bias=made[2])
            shape = spec.y
        case "conv2d_gradient_input":
            made = (tensor("kernel", kernel), tensor("dy", spec.y))
            out = graph.conv_dgrad(loss=made[1], filter=made[0], **window)
            shape = spec.x
        case _:
            made = (tensor("x", spec.x), tensor("dy", spec.y))
            out = graph.conv_wgrad(image=made[0], loss=made[1], **window)
            shape = kernel
    dim, stride = _described(shape)
    out.set_output(True).set_data_type(kind).set_dim(dim).set_stride(stride)
    return (*made, out)


def _may_run(name: str, spec: ConvolutionSpec) -> bool:
    """Return whether a plan, by its name, is a candidate for a convolution."""
    engine = name.partition("_")[0]
    if not engine.startswith("eng"):  # the front end's, not cuDNN's
        return False
    if engine == _DIRECT and spec.groups == 1:
        return False
    if engine == _WIDE and spec.x[3] < _MANY:
        return False
    return not spec.lopsided or engine in _LOPSIDED[spec.op_type]


def _divisor(spec: ConvolutionSpec, most: int) -> int | None:
    """Return the largest divisor of the batch up to `most`, or None.

    The first image of each part is aligned for cuDNN's vector loads.
    """
    sizes = [4 * prod(shape[1:]) for shape in spec.places_of_images.values()]
    for images in range(most, 0, -1):
        if spec.images % images == 0 and all(
            images * size % _VECTOR == 0 for size in sizes
        ):
            return images
    return None


def _described(shape: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Return lengths and strides of [N, H, W, C] in cuDNN's order: N, C, H, W."""
    n, h, w, c = shape
    return [n, c, h, w], [h * w * c, 1, w * c, c]


# Strides cannot replace this copy: cuDNN accepts any packed strides of a kernel, but
# plans and computes as if they were those of [O, KH, KW, C].
def _turned(spec: ConvolutionSpec) -> CudaSource | None:
    """Return the source that transposes the kernel; None if that changes nothing."""
    *window, units = spec.kernel
    if units == 1 or prod(window) == 1:
        return None
    here = OperandSpec(spec.kernel, "float32")
    there = OperandSpec((units, *window), "float32")
    if spec.kernel_place == 2:
        return cuda_source("transpose", {"axes": (1, 2, 3, 0)}, [there], [here])
    return cuda_source("transpose", {"axes": (3, 0, 1, 2)}, [here], [there])


def _nowhere() -> None:
    """Return None, like a weak reference to a destroyed stream."""


def _describe(spec: ConvolutionSpec) -> str:
    return f"{spec.op_type} of x {spec.x}, kernel {spec.kernel} and y {spec.y}"


def _line(error: Exception) -> str:
    """Return the first line of an error of the front end."""
    return first_line(error)[:200]


def _warn(reason: str) -> None:
    if reason in _told:
        return
    _told.add(reason)
    warnings.warn(
        f"{reason.rstrip('.')}. The slower generated kernels compute convolutions "
        f"instead; {_VARIABLE}=none asks for them without this warning.",
        RuntimeWarning,
        stacklevel=3,
    )


_told: set[str] = set()  # reasons that this process has warned of
_lost: list[object] = []  # cuDNN's objects in the child of a fork, never destroyed


def _destroy(
    context: CudaContext,
    module: Any,
    handle: Any,
    graphs: dict[tuple[ConvolutionSpec, int], _Found],
) -> None:
    """Destroy plans and then the handle; not in the child of a fork."""

    def destroy() -> None:
        context.wait()  # queued kernels may use them
        graphs.clear()
        module.destroy_handle(handle)

    try:
        context.call(destroy)
    except (KernelError, RuntimeError):
        _lost.append((module, handle, dict(graphs)))
