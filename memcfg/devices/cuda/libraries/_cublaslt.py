"""Matrix products by cuBLASLt, through its C ABI, with the caller's workspace.

The library is loaded at the first product of a GPU and allocates no GPU memory. Our
matrices are row-major. For cuBLASLt, which is column-major, the same bytes are the
transposed matrix: it computes `out.T = b.T @ a.T`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import warnings
import weakref
from contextlib import suppress
from ctypes import POINTER, byref, c_float, c_int, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.devices._packaged_library import packaged_library
from memcfg.devices._switch import asks_for_tf32
from memcfg.devices.cuda._convolution_spec import describe_convolution
from memcfg.errors import KernelError, MissingDependencyError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg._core import CudaContext, CudaInfo, CudaStream
    from memcfg.devices._contract import OperandSpec

_VARIABLE = "MEMCFG_CUBLASLT_LIBRARY"
_NONE = "none"  # selects generated kernels
_PACKAGES = {13: "nvidia-cublas", 12: "nvidia-cublas-cu12"}  # by CUDA's major version

_PRODUCTS = (
    *("dense", "dense_bias", "dense_gradient_kernel", "dense_gradient_input"),
    "matmul",
)
_PIXELWISE = {  # product that a 1 x 1 convolution is
    "conv2d": "dense",
    "conv2d_bias": "dense_bias",
    "conv2d_gradient_kernel": "dense_gradient_kernel",
    "conv2d_gradient_input": "dense_gradient_input",
}
# Max. bytes of workspace, the same for every policy, so that neither a policy nor an
# address changes a bit. NVIDIA recommends these sizes for cuBLAS on GPUs of compute
# capability 9.0 and newer, and on older ones.
_WORKSPACE, _WORKSPACE_BEFORE_HOPPER = 32 << 20, 4 << 20
_ALIGNMENT = 16  # bytes; of operands
_WORKSPACE_ALIGNMENT = 256  # bytes

# Values of enumerators in cublasLt.h, cublas_api.h and library_types.h.
CONSTANTS = {
    "CUBLAS_STATUS_SUCCESS": 0,
    "CUBLAS_STATUS_NOT_SUPPORTED": 15,
    "CUBLAS_OP_N": 0,
    "CUBLAS_OP_T": 1,
    "CUBLAS_COMPUTE_32F": 68,
    "CUBLAS_COMPUTE_32F_FAST_TF32": 77,
    "CUDA_R_32F": 0,
    "CUBLASLT_MATMUL_DESC_TRANSA": 3,
    "CUBLASLT_MATMUL_DESC_TRANSB": 4,
    "CUBLASLT_MATMUL_DESC_EPILOGUE": 7,
    "CUBLASLT_MATMUL_DESC_BIAS_POINTER": 8,
    "CUBLASLT_EPILOGUE_BIAS": 4,
    "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT": 5,
    "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": 6,
    "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": 1,
    "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK": 3,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES": 5,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES": 6,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES": 7,
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES": 8,
    "CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE": 2,
}


class Choice(ctypes.Structure):
    """An algorithm and its workspace: cublasLtMatmulHeuristicResult_t."""

    algorithm: Any
    workspace_bytes: Any
    state: Any
    waves: Any
    reserved: Any

    _fields_: ClassVar[Sequence[Any]] = (
        ("algorithm", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


_SET: tuple[Any, ...] = (c_void_p, c_int, c_void_p, c_size_t)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {  # all but two return a status
    "cublasLtCreate": (POINTER(c_void_p),),
    "cublasLtDestroy": (c_void_p,),
    "cublasLtGetVersion": (),
    "cublasLtGetStatusName": (c_int,),
    "cublasLtMatmulDescCreate": (POINTER(c_void_p), c_int, c_int),
    "cublasLtMatmulDescSetAttribute": _SET,
    "cublasLtMatmulDescDestroy": (c_void_p,),
    "cublasLtMatrixLayoutCreate": (
        *(POINTER(c_void_p), c_int, c_uint64, c_uint64, c_int64),
    ),
    "cublasLtMatrixLayoutSetAttribute": _SET,
    "cublasLtMatrixLayoutDestroy": (c_void_p,),
    "cublasLtMatmulPreferenceCreate": (POINTER(c_void_p),),
    "cublasLtMatmulPreferenceSetAttribute": _SET,
    "cublasLtMatmulPreferenceDestroy": (c_void_p,),
    # handle, product, layouts of a, b, c, d, preference, requested, choices, returned
    "cublasLtMatmulAlgoGetHeuristic": (
        *(c_void_p,) * 7,
        *(c_int, POINTER(Choice), POINTER(c_int)),
    ),
    # handle, product, alpha, a and its layout, b, beta, c, d, algorithm, workspace
    "cublasLtMatmul": (*(c_void_p,) * 14, c_size_t, c_void_p),
}


@dataclass(frozen=True, slots=True)
class Product:
    """Products of pairs of matrices: operands, sizes and layouts."""

    a: int  # the operand's index
    b: int
    batch: int
    rows: int
    columns: int
    depth: int
    transpose_a: bool = False  # it has depth x rows
    transpose_b: bool = False
    bias: int | None = None  # the operand that is added to each row


def describe_product(
    op_type: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[OperandSpec],
    outputs: Sequence[OperandSpec],
) -> Product | None:
    """Describe the matrix product of a valid op; None if it is none, or is empty."""
    convolution = describe_convolution(op_type, attributes, inputs, outputs)
    if convolution is not None and convolution.pixelwise:
        op_type = _PIXELWISE[op_type]
    if op_type not in _PRODUCTS or not all(spec.size for spec in (*inputs, *outputs)):
        return None
    first, second = (spec.shape for spec in inputs[:2])
    match op_type:
        case "dense" | "dense_bias":
            bias = 2 if op_type == "dense_bias" else None
            sizes = (prod(first[:-1]), second[-1], first[-1])
            return Product(0, 1, 1, *sizes, bias=bias)
        case "dense_gradient_kernel":
            depth = prod(first[:-1])
            return Product(0, 1, 1, first[-1], second[-1], depth, transpose_a=True)
        case "dense_gradient_input":
            rows = prod(second[:-1])
            return Product(1, 0, 1, rows, first[-2], first[-1], transpose_b=True)
    ta, tb = (bool(attributes.get(f"transpose_{name}")) for name in "ab")
    *lead, rows, columns = outputs[0].shape
    batch, depth = prod(lead), first[-2] if ta else first[-1]
    if len(second) == 2 and not ta:  # one matrix for all
        rows, batch = batch * rows, 1
    return Product(0, 1, batch, rows, columns, depth, ta, tb)


def workspace_limit(gpu: CudaInfo) -> int:
    """Return the max. bytes of workspace of an algorithm on a GPU."""
    return _WORKSPACE if gpu.capability >= 90 else _WORKSPACE_BEFORE_HOPPER


class CublasLt:
    """The library at a path, in the context of a GPU.

    Parameters
    ----------
    context : CudaContext
        The GPU's context.
    path : str
        The path of the library, or its name for the loader.

    Raises
    ------
    KernelError
        If it cannot be loaded, lacks a function, or does not work with the GPU.
    """

    def __init__(self, context: CudaContext, path: str) -> None:
        self.path = path
        self._context = context
        self._compute = CONSTANTS["CUBLAS_COMPUTE_32F"]
        if asks_for_tf32():
            self._compute = CONSTANTS["CUBLAS_COMPUTE_32F_FAST_TF32"]
        try:
            library = ctypes.CDLL(path)
            self._functions = {name: library[name] for name in _FUNCTIONS}
        except (OSError, AttributeError) as error:
            raise KernelError(f"cuBLASLt cannot be loaded: {error}") from None
        for name, kinds in _FUNCTIONS.items():
            self._functions[name].argtypes = kinds
        self._functions["cublasLtGetVersion"].restype = c_size_t
        self._functions["cublasLtGetStatusName"].restype = ctypes.c_char_p
        self.version: int = self._functions["cublasLtGetVersion"]()  # 130100 is 13.1
        self._handle = c_void_p()
        self._lock = threading.Lock()
        self._chosen: dict[Product, tuple[ChosenProduct, ...]] = {}
        self._made: list[tuple[str, c_void_p]] = []  # (destroy function, object)
        self._workspace = workspace_limit(context.driver.info(context.ordinal))
        context.call(partial(self._make, self._handle, "cublasLt"))
        make = self._make_preference
        self._preference = context.call(partial(make, self._workspace))
        self._frugal = context.call(partial(make, 0))
        ends = (context, self._functions, self._made)
        weakref.finalize(self, _destroy, *ends).atexit = False

    def choices(self, product: Product) -> tuple[ChosenProduct, ...]:
        """Return the default algorithm of a product, and one without workspace."""
        return self._context.call(partial(self._choose_once, product))

    def _choose_once(self, product: Product) -> tuple[ChosenProduct, ...]:
        with self._lock:  # never in a forked child, whose context is refused
            if product not in self._chosen:
                self._chosen[product] = self._choose(product)
            return self._chosen[product]

    def multiply(
        self,
        chosen: ChosenProduct,
        a: int,
        b: int,
        bias: int | None,
        out: int,
        scratch: int,
        stream: CudaStream,
    ) -> None:
        """Enqueue a product of matrices at these addresses on a stream."""
        one, zero = c_float(1.0), c_float(0.0)
        layout_b, layout_a, layout_out = chosen.layouts
        size = chosen.choice.workspace_bytes
        workspace = scratch + -scratch % _WORKSPACE_ALIGNMENT if size else None
        arguments = (
            *(self._handle, chosen.description, byref(one), b, layout_b, a, layout_a),
            *(byref(zero), out, layout_out, out, layout_out),
            *(byref(chosen.choice.algorithm), workspace, size, stream.handle),
        )
        call = partial(self._call, "cublasLtMatmul", *arguments)
        if bias is not None:
            call = partial(self._call_with_bias, chosen.description, bias, call)
        self._context.call(call)

    def _call_with_bias(
        self, description: c_void_p, bias: int, call: Callable[[], None]
    ) -> None:
        """Set the bias of a shared description during a call that reads it."""
        with self._lock:
            self._set_bias(description, bias)
            call()

    def _set_bias(self, description: c_void_p, bias: int) -> None:
        name = "MATMUL_DESC_BIAS_POINTER"
        self._set("cublasLtMatmulDesc", description, name, c_void_p(bias))

    def _choose(self, product: Product) -> tuple[ChosenProduct, ...]:
        p = product
        description = c_void_p()
        float32 = CONSTANTS["CUDA_R_32F"]
        kind = "cublasLtMatmulDesc"
        self._make(description, kind, self._compute, float32)
        turned = (("TRANSA", p.transpose_b), ("TRANSB", p.transpose_a))
        for name, transposed in turned:
            value = CONSTANTS[f"CUBLAS_OP_{'T' if transposed else 'N'}"]
            self._set(kind, description, f"MATMUL_DESC_{name}", c_int(value))
        if p.bias is not None:
            epilogue = ctypes.c_uint32(CONSTANTS["CUBLASLT_EPILOGUE_BIAS"])
            self._set(kind, description, "MATMUL_DESC_EPILOGUE", epilogue)
            self._set_bias(description, _ALIGNMENT)  # only its alignment is read
        layouts = (
            self._layout(p.batch, p.depth, p.columns, p.transpose_b),
            self._layout(p.batch, p.rows, p.depth, p.transpose_a),
            self._layout(p.batch, p.rows, p.columns, transposed=False),
        )
        made = partial(ChosenProduct, self, product, description, layouts)
        first = self._ask(description, layouts, self._preference, self._workspace)
        if first is None:
            return ()
        if not first.workspace_bytes:
            return (made(first, "cublaslt"),)
        second = self._ask(description, layouts, self._frugal, 0)
        if second is None:
            return (made(first, "cublaslt"),)
        return made(first, "cublaslt"), made(second, "cublaslt:0")

    def _ask(
        self,
        description: c_void_p,
        layouts: tuple[c_void_p, c_void_p, c_void_p],
        preference: c_void_p,
        workspace: int,
    ) -> Choice | None:
        """Return the algorithm that the library ranks first; None if there is none."""
        choice, count = Choice(), c_int()
        status = self._functions["cublasLtMatmulAlgoGetHeuristic"](
            *(self._handle, description, layouts[0], layouts[1]),
            *(layouts[2], layouts[2], preference),
            *(1, byref(choice), byref(count)),
        )
        if status == CONSTANTS["CUBLAS_STATUS_NOT_SUPPORTED"]:
            return None
        self._check("cublasLtMatmulAlgoGetHeuristic", status)
        if count.value == 0 or choice.state != 0:
            return None
        if choice.workspace_bytes > workspace:
            raise KernelError(
                f"cuBLASLt wants {choice.workspace_bytes} bytes of scratch, more than "
                f"{workspace}"
            )
        return choice

    def _layout(
        self, batch: int, rows: int, columns: int, transposed: bool
    ) -> c_void_p:
        """Make the layout of row-major matrices, or of column-major if transposed."""
        if transposed:
            rows, columns = columns, rows
        layout, kind = c_void_p(), "cublasLtMatrixLayout"
        float32 = CONSTANTS["CUDA_R_32F"]
        self._make(layout, kind, float32, columns, rows, columns)
        if batch > 1:
            self._set(kind, layout, "MATRIX_LAYOUT_BATCH_COUNT", c_int(batch))
            stride = c_int64(rows * columns)
            name = "MATRIX_LAYOUT_STRIDED_BATCH_OFFSET"
            self._set(kind, layout, name, stride)
        return layout

    def _make_preference(self, workspace: int) -> c_void_p:
        """Make a preference that allows only algorithms with reproducible bits."""
        preference, kind = c_void_p(), "cublasLtMatmulPreference"
        self._make(preference, kind)
        values: dict[str, Any] = {
            "MAX_WORKSPACE_BYTES": c_uint64(workspace),
            "REDUCTION_SCHEME_MASK": ctypes.c_uint32(
                CONSTANTS["CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE"]
            ),
            **{
                f"MIN_ALIGNMENT_{name}_BYTES": ctypes.c_uint32(_ALIGNMENT)
                for name in "ABCD"
            },
        }
        for name, value in values.items():
            self._set(kind, preference, f"MATMUL_PREF_{name}", value)
        return preference

    def _make(self, made: c_void_p, kind: str, *arguments: int) -> None:
        self._call(f"{kind}Create", byref(made), *arguments)
        self._made.append((f"{kind}Destroy", made))

    def _set(self, kind: str, made: c_void_p, name: str, value: Any) -> None:
        number = CONSTANTS[f"CUBLASLT_{name}"]
        size = ctypes.sizeof(value)
        self._call(f"{kind}SetAttribute", made, number, byref(value), size)

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, self._functions[name](*arguments))

    def _check(self, name: str, status: int) -> None:
        if status:
            status_name = self._functions["cublasLtGetStatusName"](status)
            raise KernelError(f"{name}: {(status_name or b'?').decode()}")


@dataclass(frozen=True, eq=False)
class ChosenProduct:
    """A product with its algorithm; keeps the library loaded."""

    library: CublasLt
    product: Product
    description: c_void_p
    layouts: tuple[
        c_void_p, c_void_p, c_void_p
    ]  # in the library's order of a, b and out
    choice: Choice
    algorithm: str  # its name

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that it needs, including their alignment."""
        size: int = self.choice.workspace_bytes
        return size + _WORKSPACE_ALIGNMENT if size else 0

    def bind(self, addresses: Sequence[int], scratch: int) -> list[BoundProduct]:
        """Bind it to addresses of operands and scratch."""
        product = self.product
        a, b = addresses[product.a], addresses[product.b]
        bias = None if product.bias is None else addresses[product.bias]
        return [BoundProduct(self, a, b, bias, addresses[-1], scratch)]


@dataclass(frozen=True, slots=True)
class BoundProduct:
    """A product bound to the addresses of its operands."""

    chosen: ChosenProduct
    a: int
    b: int
    bias: int | None
    out: int
    scratch: int

    def issue(self, stream: CudaStream) -> None:
        """Enqueue the work on a stream."""
        self.chosen.library.multiply(
            *(self.chosen, self.a, self.b, self.bias, self.out, self.scratch),
            stream,
        )


def load_cublaslt(context: CudaContext) -> CublasLt | None:
    """Load the library for a GPU; return None, with a warning, if it is missing.

    Raises
    ------
    KernelError
        If ``MEMCFG_CUBLASLT_LIBRARY`` names a library that is missing or does not
        work, or ``MEMCFG_CUDA_TF32`` is neither 0 nor 1.

    Warns
    -----
    RuntimeWarning
        If it is missing, or does not work with this GPU; once a process.
    """
    named = os.environ.get(_VARIABLE, "")
    asks_for_tf32()
    if named == _NONE:
        return None
    if named:
        if not Path(named).is_file():
            raise KernelError(f"{_VARIABLE} is {named!r}, which is not a file")
        return CublasLt(context, named)
    try:
        return CublasLt(context, find_cublaslt(context.driver.version))
    except (KernelError, MissingDependencyError) as error:
        _warn(str(error))
        return None


def find_cublaslt(cuda: int) -> str:
    """Return the library's path, or its name for the loader.

    Parameters
    ----------
    cuda : int
        The driver's CUDA version: 13000 is 13.0. It also runs older libraries.

    Raises
    ------
    MissingDependencyError
        If there is no library.
    """
    majors = [major for major in _PACKAGES if major <= cuda // 1000]
    for major in majors:
        name = f"libcublasLt.so.{major}"
        path = packaged_library(_PACKAGES[major], name)
        if path is not None:
            return path
        with suppress(OSError):
            ctypes.CDLL(name)
            return name
    package = _PACKAGES[majors[0] if majors else min(_PACKAGES)]
    raise MissingDependencyError(
        f"cuBLASLt was not found: install it with `pip install {package}`, or let "
        f"{_VARIABLE} name it."
    )


def _warn(reason: str) -> None:
    if reason in _told:
        return
    _told.add(reason)
    warnings.warn(
        f"{reason.rstrip('.')}. The slower generated kernels multiply matrices "
        f"instead; {_VARIABLE}={_NONE} asks for them without this warning.",
        RuntimeWarning,
        stacklevel=3,
    )


_told: set[str] = set()  # reasons that this process has warned of


def _destroy(
    context: CudaContext,
    functions: Mapping[str, Callable[..., int]],
    made: list[tuple[str, c_void_p]],
) -> None:
    """Destroy the library's objects, the handle last; not in the child of a fork."""

    def destroy() -> None:
        context.wait()  # queued kernels may use them
        while made:
            name, each = made.pop()
            functions[name](each)

    with suppress(KernelError, RuntimeError):
        context.call(destroy)
