"""How ops are declared: documentation, checks of axes and operands, layers."""

from __future__ import annotations

import functools
import inspect
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import integer
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers import _operators as operators
from memcfg.nn.layers._batch_size import BatchSize
from memcfg.nn.layers._layer import (
    Variable,
    current_call,
    in_loss,
    named_operation,
    pattern,
)
from memcfg.nn.layers._operators import (
    ForEachSample,
    Function,
    OfBatch,
    OfWeight,
    Pointwise,
    Rows,
    as_tensor,
    check_batch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "aligned",
    "as_dtype_of",
    "as_float",
    "axes_of",
    "axis_of",
    "batch_size_of",
    "binary",
    "combined",
    "described",
    "documented",
    "for_each_row",
    "joined",
    "lengths_of",
    "of_one",
    "of_two",
    "reduced",
    "reordered",
    "reshaped",
    "tensor_of",
]

# Parameters in numpydoc's form, by name, or by op and name where ops differ.
_TEXTS = """
antialias : bool, default False
    Whether an image that is made smaller is smoothed.
bottom_cropping : int, optional
    How many rows below to cut off.
bottom_padding : int, optional
    How many rows below to add.
crop_to_aspect_ratio : bool, default False
    Whether images are cropped to the aspect ratio before.
fill_mode : str, default "constant"
    Must be ``"constant"``.
resize.fill_value : float, default 0.0
    The value of what is padded.
filter_sigma : float, default 1.5
    Its standard deviation in pixels.
filter_size : int, default 11
    The size of the Gaussian window.
image1 : SymbolicTensor
    Images (height, width, channels), or a batch of them.
image2 : SymbolicTensor
    The images to compare with, of the same shape.
images : SymbolicTensor
    Images (height, width, channels), or a batch of them.
interpolation : str, default "bilinear"
    As of the layer `Resizing`.
k1 : float, default 0.01
    The first constant of the paper.
k2 : float, default 0.03
    The second constant of the paper.
gaussian_blur.kernel_size : int or tuple of int, default (3, 3)
    The width and the height of the window.
left_cropping : int, optional
    How many columns on the left to cut off.
left_padding : int, optional
    How many columns on the left to add.
M : int, optional
    The number of columns; by default N.
N : int
    The number of rows.
a : SymbolicTensor
    The input.
lstsq.a : SymbolicTensor or array_like
    The matrices.
solve.a : SymbolicTensor or array_like
    The matrices.
solve_triangular.a : SymbolicTensor or array_like
    The matrices.
approximate : bool, default True
    Whether to approximate with tanh.
array : SymbolicTensor
    The input, of at least two axes.
assume_unique : bool, default False
    Accepted for NumPy's programs; the result is the same.
atol : float, default 1e-8
    The absolute tolerance.
attn_logits_soft_cap : float, optional
    Scores are bounded by ``cap * tanh(scores / cap)``.
axes : int or tuple of int
    The axes, in order.
axes_lengths : int
    The lengths of axes that the pattern names and the shape does not tell.
axis : int or tuple of int
    The axis; axis 0, the batch, is not allowed. In a loss None reduces all axes
    including the batch, and sample weights cannot be used.
expand_dims.axis : int or tuple of int
    The positions of the new axes in the result.
axis1 : int
    The first axis.
axis2 : int
    The second axis.
axisa : int, default -1
    The axis of the vectors of x1.
axisb : int, default -1
    The axis of the vectors of x2.
axisc : int, default -1
    The axis of the vectors of the result.
lstsq.b : SymbolicTensor or array_like
    The columns, or one vector for each matrix.
solve.b : SymbolicTensor or array_like
    The columns, or one vector for each matrix.
solve_triangular.b : SymbolicTensor or array_like
    The columns, or one vector for each matrix.
b : float, default 4
    How smooth the bend at 0 is.
base : float, default 10
    The base of the powers.
beam_width : int, default 100
    How many beginnings of sequences are kept after each step.
beta : SymbolicTensor or array_like, optional
    The shift, of the length of the axis.
kaiser.beta : float
    The shape of the window; 0 makes a rectangle.
dot_product_attention.bias : SymbolicTensor or array_like, optional
    Added to the scores (N, heads or 1, queries, keys).
bins : sequence of float
    The edges, in ascending order.
histogram.bins : int, default 10
    The number of bins.
block_size : int
    The side of a block.
center : bool, default True
    Whether a window's middle, and not its start, is at its place.
choicelist : sequence of SymbolicTensor or array_like
    What to take where the condition of the same position holds.
condition : SymbolicTensor
    Not 0 where to take x1.
condlist : sequence of SymbolicTensor or array_like
    The conditions; the first that holds decides.
constant_values : float, optional
    The padding, 0 by default.
data : SymbolicTensor
    The rows, without a batch.
data_format : str
    ``"channels_last"``.
decimals : int, default 0
    Digits after the decimal point.
default : SymbolicTensor, array_like or float, default 0
    What to take where no condition holds.
default_value : float
    What replaces it.
depthwise_kernel : SymbolicTensor or array_like
    The kernel (..., channels, multiplier) of each channel.
destination : int or sequence of int
    Their new positions.
compute_uv : bool, default True
    Whether to return vectors, too.
dilation : int or tuple of int, default 1
    The distance of the elements of a window, along each axis.
dilation_rate : int or tuple of int, default 1
    The distance of the kernel's elements along each axis.
dtype : str
    ``"float32"`` or ``"int32"``.
dx : float, default 1.0
    The distance between neighbours.
endpoint : bool, default True
    Whether `stop` is the last number.
epsilon : float, optional
    Added to, or the least of, what is divided by.
equal_nan : bool, default False
    Whether NaN is close to NaN.
fft_length : int, optional
    The length of the transform.
stft.fft_length : int
    The length of a transform, at least that of a window.
istft.fft_length : int
    The length of a transform, at least that of a window.
fill_value : float
    The value of all elements.
flash_attention : bool, optional
    How scores are computed is planned; True is refused.
from_logits : bool, default False
    Whether the output has logits in the place of probabilities.
full_matrices : bool, default True
    Whether to complete the vectors to square matrices.
gamma : SymbolicTensor or array_like, optional
    The factor, of the length of the axis.
initial : float or SymbolicTensor, optional
    A number that counts as well.
increasing : bool, default False
    Whether powers grow from left to right.
indices : SymbolicTensor, array_like or int
    The indices; negative ones count from the end.
indices_or_sections : int or sequence of int
    The number of parts, or the indices where to split.
inputs : SymbolicTensor
    The input.
ctc_decode.inputs : SymbolicTensor
    Logits (N, steps, classes).
multi_hot.inputs : SymbolicTensor
    The classes, in int32; negative ones are left out.
invert : bool, default False
    Whether to return where elements are not in x2.
is_causal : bool, default False
    Whether a query sees only the keys up to its own position.
in_top_k.k : int
    How many of the largest predictions count.
k : int, default 0
    The diagonal: above the main one if positive.
rot90.k : int, default 1
    How often to rotate by 90 degrees.
top_k.k : int
    The number of elements.
keepdims : bool, default False
    Whether to keep reduced axes, with length 1.
conv_transpose.kernel : SymbolicTensor or array_like
    The kernel (..., filters, channels).
depthwise_conv.kernel : SymbolicTensor or array_like
    The kernel (..., channels, multiplier).
kernel : SymbolicTensor or array_like
    The kernel (..., channels, filters), after the lengths of its sides.
dot_product_attention.key : SymbolicTensor
    The keys (N, steps, heads, size).
key : object
    Integers, slices, None and ``...``; the batch comes first.
kernel_size : int or tuple of int
    The lengths of a window.
kth : int
    The position, in ascending order, before which no element is larger.
mask : SymbolicTensor or array_like, optional
    Not 0 where a key counts (N, heads or 1, queries, keys).
length : int, optional
    The length of the signal; by default that of all windows.
lower : bool, default False
    Whether the lower triangle is read, and not the upper one.
mask_index : int, default 0
    The class of blanks.
max_val : float
    The largest value that the signal may have.
mean : SymbolicTensor or array_like
    The mean, of the length of the axis.
merge_repeated : bool, default True
    Whether a label that is repeated without a blank stands once; of "greedy".
method : str, default "linear"
    How to interpolate: ``"linear"``, ``"lower"``, ``"higher"``, ``"midpoint"`` or
    ``"nearest"``.
minlength : int
    The length of the result: numbers are less.
correlate.mode : str, default "valid"
    ``"valid"``, ``"same"`` or ``"full"``.
qr.mode : str, default "reduced"
    ``"reduced"``, or ``"complete"`` for a square orthogonal factor.
pad.mode : str, default "constant"
    ``"constant"``, ``"reflect"``, ``"symmetric"``, ``"edge"`` or ``"wrap"``.
diff.n : int, default 1
    How often to take differences.
identity.n : int
    The number of rows and columns.
nan : float, default 0.0
    Takes the place of NaN.
neginf : float, optional
    Takes the place of -infinity; by default the smallest float32.
newshape : tuple of int
    The new shape; the first length is -1 or None.
num : int, default 50
    The number of elements.
unstack.num : int, optional
    The length of the axis, where it is to be checked.
num_classes : int
    The length of the new axis.
num_segments : int, optional
    The number of segments; by default as many as constant ids tell.
batch_normalization.offset : SymbolicTensor or array_like, optional
    The shift, of the length of the axis.
offset : int, default 0
    The diagonal: above the main one if positive.
ord : int, float or str, optional
    The order: a number, inf, -inf, ``"fro"`` or ``"nuc"``; by default 2.
order : int or float, default 2
    The order of the norm.
output : SymbolicTensor
    The predictions.
ctc_loss.output : SymbolicTensor or array_like
    Logits (N, steps, classes).
output_length : SymbolicTensor or array_like
    The number of steps of each sample, in int32.
output_padding : None
    Accepted for Keras's programs; any other value is refused.
fold.output_size : int or tuple of int
    The height and width of the images.
output_size : int or tuple of int
    The lengths of the result, without batch and channels.
pad_to_aspect_ratio : bool, default False
    Whether images are padded to the aspect ratio before.
pad_width : int or sequence of (int, int)
    Lengths before and after, for each axis; those of the batch are 0.
conv.padding : str, default "valid"
    ``"valid"``, ``"same"``, or for one axis ``"causal"``.
fold.padding : int or tuple of int, default 0
    Zeros around the images, along each axis.
unfold.padding : int or tuple of int, default 0
    Zeros around the images, along each axis.
padding : str, default "valid"
    ``"valid"`` or ``"same"``.
pattern : str
    Axes by name before and after ``->``, in parentheses where they are joined.
pointwise_kernel : SymbolicTensor or array_like
    The kernel (..., channels * multiplier, filters) that mixes channels.
pool_size : int or tuple of int
    The lengths of the window.
posinf : float, optional
    Takes the place of infinity; by default the largest float32.
predictions : SymbolicTensor
    The scores (N, classes).
nanpercentile.q : float or sequence of float
    The percentiles, from 0 to 100.
percentile.q : float or sequence of float
    The percentiles, from 0 to 100.
q : float or sequence of float
    The quantiles, from 0 to 1.
query : SymbolicTensor
    The queries (N, steps, heads, size).
range : tuple of float
    The least and the largest number that count.
rcond : float, optional
    The share of the largest singular value up to which values count as 0.
reduction : str, optional
    ``"add"``, ``"max"``, ``"min"`` or ``"mul"`` to combine old values with new
    ones.
repeats : int or sequence of int
    How often to repeat, for each axis.
retstep : bool, default False
    Whether to return the distance of the numbers, too.
right_cropping : int, optional
    How many columns on the right to cut off.
right_padding : int, optional
    How many columns on the right to add.
rtol : float, default 1e-5
    The tolerance relative to x2.
dot_product_attention.scale : float, optional
    The factor of the scores; by default ``1 / sqrt(size)``.
scale : SymbolicTensor or array_like, optional
    The factor, of the length of the axis.
sequence_length : int
    The length of a window.
sequence_lengths : SymbolicTensor or array_like
    The number of steps of each sample, in int32.
sequence_stride : int
    The distance of windows.
segment_ids : SymbolicTensor or array_like
    The segment of each row, in int32.
shape : tuple of int
    The shape; the length of the batch is -1 or None.
shift : int or sequence of int
    The places by which elements move.
side : str, default "left"
    ``"left"`` or ``"right"`` of equal elements.
transform : SymbolicTensor or array_like
    Shape (8,), or (batch, 8): the numbers of each image.
start_points : SymbolicTensor or array_like
    Shape (4, 2), or (batch, 4, 2): the x and y of four points.
end_points : SymbolicTensor or array_like
    Shape (4, 2), or (batch, 4, 2): where they go.
affine_transform.fill_mode : str, default "constant"
    What pixels beyond the border are: one of "constant", "nearest", "wrap", "mirror"
    and "reflect".
affine_transform.fill_value : float, default 0
    The value for "constant".
perspective_transform.fill_value : float, default 0
    The value of pixels beyond the border.
elastic_transform.alpha : float, default 20.0
    The number of pixels that a noise of 1 moves.
elastic_transform.sigma : float, default 5.0
    The deviation of the noise, and of the window that smooths it, in pixels.
elastic_transform.fill_mode : str, default "reflect"
    As of `affine_transform`.
elastic_transform.fill_value : float, default 0.0
    The value for "constant".
elastic_transform.seed : int or SeedGenerator, optional
    The seed of the noise.
coordinates : SymbolicTensor or array_like
    Shape (axes of the inputs, ...), the places in elements.
map_coordinates.order : int
    0 for the nearest elements, 1 for linear interpolation.
map_coordinates.fill_mode : str, default "constant"
    As of `affine_transform`.
map_coordinates.fill_value : float, default 0
    The value for "constant".
output_shape : tuple of int
    The shape of the result.
scale_and_translate.scale : SymbolicTensor or array_like
    Shape (resampled axes,): how many times longer each gets.
translation : SymbolicTensor or array_like
    Shape (resampled axes,): how far each is moved, in elements of the result.
spatial_dims : tuple of int
    The axes that are resampled.
scale_and_translate.method : str
    One of "linear", "cubic", "lanczos3" and "lanczos5".
sigma : float or tuple of float, default (1.0, 1.0)
    The standard deviations in pixels, of the width and the height.
resize.size : int or tuple of int
    The height and the width of the result.
size : int or tuple of int
    The size of a patch.
sorted : bool, default False
    Accepted for Keras's programs; the result is the same.
extract_patches.strides : int or tuple of int, optional
    The steps between patches; by default their size.
extract_patches_3d.strides : int or tuple of int, optional
    The steps between patches; by default their size.
target_height : int, optional
    The height of the result.
target_width : int, optional
    The width of the result.
top_cropping : int, optional
    How many rows above to cut off.
top_padding : int, optional
    How many rows above to add.
volumes : SymbolicTensor
    Volumes (depth, height, width, channels), or a batch of them.
nonzero.x : array_like
    The array.
unique.axis : int, optional
    The axis whose parts are compared; None for all elements.
unique.fill_value : float, optional
    What is behind the elements of a result of a given size, by default 0.
unique.return_counts : bool, default False
    Whether to return how often each element occurs.
unique.return_index : bool, default False
    Whether to return where each element is first.
unique.return_inverse : bool, default False
    Whether to return the place of each element of `x` in the result.
unique.size : int, optional
    The number of elements of the result.
unique.sorted : bool, default True
    Ignored: elements are always in ascending order.
unique.x : array_like
    The array.
view.dtype : str or dtype, optional
    The dtype; None for that of `x`.
view.x : array_like
    The array.
top_k.sorted : bool, default True
    Accepted for Keras's programs; elements are always in descending order.
sorted_sequence : SymbolicTensor or array_like
    A vector in ascending order.
source : int or sequence of int
    The axes to move.
start : float
    The first number; for `arange` without `stop`, the end.
start_indices : sequence of int
    The first index along each axis.
step : float, optional
    The distance of the numbers; by default 1.
stop : float
    The end.
strategy : str, default "greedy"
    ``"greedy"`` or ``"beam_search"``.
stride : int or tuple of int, default 1
    The distance of windows, along each axis.
strides : int or tuple of int
    The steps of the window along each axis; for pooling `pool_size` by default.
target : SymbolicTensor or array_like
    The truth.
ctc_loss.target : SymbolicTensor or array_like
    Labels (N, places), in int32.
target_length : SymbolicTensor or array_like
    The number of labels of each sample, in int32.
targets : SymbolicTensor
    The classes (N,), in int32.
tensor : SymbolicTensor
    The input.
threshold : float
    The largest number that is replaced.
tol : float, optional
    The largest singular value that counts as 0; by default relative to the largest.
top_paths : int, default 1
    How many sequences are returned; of "beam_search".
upper : bool, default False
    Whether the factor is upper, and not lower triangular.
updates : SymbolicTensor or array_like
    What replaces the part.
value : SymbolicTensor
    The values (N, steps, heads, size).
scatter.values : SymbolicTensor
    The values, one or a row for each index.
searchsorted.values : SymbolicTensor or array_like
    The numbers to insert.
values : SymbolicTensor or array_like
    The values.
variable : SymbolicTensor
    The input.
variance : SymbolicTensor or array_like
    The variance, of the length of the axis.
window : str or array_like or None, default "hann"
    ``"hann"``, ``"hamming"``, the numbers of a window, or None for ones.
weights : SymbolicTensor or array_like, optional
    The weights; by default all are equal.
fft.x : tuple of SymbolicTensor
    The real and the imaginary part.
fft2.x : tuple of SymbolicTensor
    The real and the imaginary part.
ifft2.x : tuple of SymbolicTensor
    The real and the imaginary part.
irfft.x : tuple of SymbolicTensor
    The real and the imaginary part.
istft.x : tuple of SymbolicTensor
    The real and the imaginary part (..., windows, frequencies).
x : SymbolicTensor
    The input.
x1 : SymbolicTensor, array_like or float
    The first operand.
x2 : SymbolicTensor, array_like or float
    The second; axes of length 1 are broadcast.
x_max : float
    The maximum.
x_min : float
    The minimum.
xs : sequence of SymbolicTensor
    The tensors.
cdist.y : SymbolicTensor
    The second set of points.
trapezoid.y : SymbolicTensor
    The values to integrate.
y : SymbolicTensor
    The second input.
"""
_PARAMETERS = dict(re.findall(r"^([\w.]+) : (.+(?:\n    .+)*)", _TEXTS, re.MULTILINE))


def documented(function: Callable[..., Any]) -> Callable[..., Any]:
    """Append the numpydoc section of the parameters; make the function an operation.

    An op that has nothing to do still drops the mask of its input.
    """
    own = described(function)

    @functools.wraps(own)
    def call(*args: Any, **options: Any) -> Any:
        made = own(*args, **options)
        if isinstance(made, SymbolicTensor) and any(
            made is each for each in (*args, *options.values())
        ):
            return Function("reshape", {"shape": tuple(lengths_of(made))})(made)
        return made

    return _with_numbers(_of_lists(named_operation(call)))


# Parameters that shape an op, whose arrays are numbers and no tensors.
_NUMBERS = frozenset(
    {
        *("start_indices", "shape", "newshape", "q", "indices_or_sections", "window"),
        *("repeats", "pad_width", "bins", "padding", "shift"),
        *("scatter.indices", "scatter_update.indices"),  # of these ops alone
    }
)


def _with_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function take arrays where it needs numbers, as in Keras."""
    names = list(inspect.signature(function).parameters)
    label = function.__name__
    numbers = {each for each in names if {each, f"{label}.{each}"} & _NUMBERS}
    if not numbers:
        return function

    def number(name: str, value: Any) -> Any:
        arrays = isinstance(value, np.ndarray | np.generic) and name in numbers
        return value.tolist() if arrays else value

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        given = [number(*each) for each in zip(names, args, strict=False)]
        rest = {name: number(name, each) for name, each in options.items()}
        return function(*given, *args[len(given) :], **rest)

    return call


def _of_lists(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function whose first argument is a tensor take numbers and lists of them.

    They are arrays of float32 or int32, as in Keras.
    """
    name, first = function.__name__, next(iter(inspect.signature(function).parameters))
    text = _PARAMETERS.get(f"{name}.{first}") or _PARAMETERS[first]
    if not text.startswith("SymbolicTensor"):
        return function

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if args and isinstance(args[0], int | float | list | tuple):
            leaves: list[Any] = []
            kinds = (SymbolicTensor, Variable, BatchSize, np.ndarray, np.generic)
            pattern((args, options), leaves, kinds)
            if not leaves:
                array = np.asarray(args[0])
                dtype = np.float32 if array.dtype.kind == "f" else np.int32
                args = (array.astype(dtype), *args[1:])
        return function(*args, **options)

    return call


def described(function: Callable[..., Any]) -> Callable[..., Any]:
    """Append the numpydoc section of the parameters of a function, even of arrays."""
    own = function.__name__
    lines = "\n".join(
        f"{name} : {_PARAMETERS.get(f'{own}.{name}') or _PARAMETERS[name]}"
        for name in inspect.signature(function).parameters
    )
    text = inspect.cleandoc(function.__doc__ or "")
    function.__doc__ = f"{text}\n\nParameters\n----------\n{lines}\n"
    return takes_arguments(function)


def tensor_of(x: Any, name: str) -> SymbolicTensor:
    """Return a symbolic tensor; TypeError for anything else."""
    if x is None:
        raise TypeError(
            f"{name} needs a tensor, got None, as x.shape[0] is, the length of the "
            "batch: in a call, ops.shape(x)[0] stands for it"
        )
    if hasattr(x, "refuse"):  # a `MovedBatch`
        x.refuse(f"given to {name}")
    if not isinstance(x, SymbolicTensor):
        raise TypeError(
            f"{name} needs a symbolic tensor, got {type(x).__name__}: use NumPy for "
            "arrays"
        )
    return x


def lengths_of(x: SymbolicTensor) -> list[Any]:
    """Return the shape, with None for a batch of any size."""
    return [*x.shape] if x.whole else [None, *x.sample_shape]


def batch_size_of(x: SymbolicTensor) -> BatchSize | None:
    """Return the first length of a tensor in a `call` or a loss; None if not there."""
    if x.whole or x.node.batch_size is not None:
        return None
    if current_call() is None and not in_loss.get():
        return None
    like, rows = x, x.node.rows
    while like.node.rows != 1:
        like = next(each for each in like.node.inputs if not each.whole)
    return BatchSize(like, rows)


def for_each_row(x: SymbolicTensor, size: BatchSize) -> Any:
    """Return a tensor without a batch, repeated so often along a new first axis."""
    made = ForEachSample()([x, size.like])
    if size.rows == 1:
        return made
    one = reshaped(made, [None, 1, *x.shape])
    wide = {"shape": (None, size.rows, *x.shape)}
    return Rows(x.whole_shape)(Function("broadcast_to", wide)(one))


def axis_of(x: SymbolicTensor, axis: Any, rank: int | None = None) -> int:
    """Return a nonnegative axis; ValueError if it is the batch or out of range."""
    rank = len(x.shape) if rank is None else rank
    result = integer(axis, "an axis", None)
    if not -rank <= result < rank or (result % rank == 0 and not x.whole):
        least = 0 if x.whole else 1
        raise ValueError(
            f"axis {axis} is out of range for {x!r}: axes are {least} to {rank - 1}"
            f"{'' if x.whole else '; axis 0 is the batch'}"
        )
    return result % rank


def as_dtype_of(x: SymbolicTensor, like: SymbolicTensor) -> Any:
    """Return a tensor in the dtype of another; floats lose what is after the point."""
    if (x.sample_dtype == "int32") == (like.sample_dtype == "int32"):
        return x
    return Function("cast", {"dtype": like.sample_dtype})(x)


def as_float(x: SymbolicTensor) -> Any:
    """Return a tensor of integers as float32, and others as they are."""
    return Function("cast", {"dtype": "float32"})(x) if x.sample_dtype == "int32" else x


def axes_of(x: SymbolicTensor, axis: Any) -> tuple[int, ...]:
    """Return distinct axes in ascending order; None means all of a whole tensor."""
    if axis is None and x.whole:
        return tuple(range(len(x.shape)))
    if axis is None:
        raise ValueError(
            f"{x!r} cannot be reduced along all axes, which include the batch: pass "
            "axis=-1, or the axes of a sample"
        )
    several = axis if isinstance(axis, list | tuple) else (axis,)
    axes = sorted(axis_of(x, each) for each in several)
    if len({*axes}) < len(axes):
        raise ValueError(f"axes {axis} of {x!r} name one axis twice")
    return tuple(axes)


def reduced(how: str, x: Any, axis: Any, keepdims: bool) -> Any:
    """Return a sum, mean or maximum along axes."""
    x = tensor_of(x, how)
    if how == "mean":
        x = as_float(x)
    if axis is None and not x.whole and current_call() is None:
        return OfBatch(f"reduce_{how}", bool(keepdims))(x)
    if not x.whole and current_call() is not None:
        rank = len(x.shape)
        axis = range(rank) if axis is None else axis
        several = axis if isinstance(axis, list | tuple | range) else (axis,)
        if any(each in (0, -rank) for each in several):
            others = [each for each in several if each not in (0, -rank)]
            axes = (0, *(axes_of(x, others) if others else ()))
            return OfBatch(f"reduce_{how}", bool(keepdims), axes)(x)
    axes = axes_of(x, axis)
    return Function(f"reduce_{how}", {"axes": axes, "keepdims": bool(keepdims)})(x)


def binary(kind: str, x1: Any, x2: Any) -> Any:
    """Return the result of an operator."""
    made: Any = NotImplemented
    if isinstance(x1, SymbolicTensor) or isinstance(x2, SymbolicTensor):
        made = operators.binary(kind, x1, x2)
    if made is NotImplemented:
        raise TypeError(
            f"{kind} needs symbolic tensors or numbers, got {x1!r} and {x2!r}"
        )
    return made


def combined(op: str, operands: Sequence[Any], attributes: Any = None) -> Any:
    """Return an element-wise op of tensors, arrays and numbers, after broadcasting."""
    if not any(isinstance(each, SymbolicTensor) for each in operands):
        raise TypeError(f"{op} needs a symbolic tensor, got {operands!r}")
    return joined(
        op, [as_tensor(each, op, floats=True) for each in operands], attributes
    )


def joined(op: str, tensors: Sequence[SymbolicTensor], attributes: Any = None) -> Any:
    """Return an element-wise op of tensors after broadcasting."""
    if any(each.whole for each in tensors):
        check_batch(op, tensors)
        return OfWeight(op, attributes)(tensors)
    ranks = {len(each.shape) for each in tensors}
    if len(ranks) > 1:
        shapes = " and ".join(str(each.shape) for each in tensors)
        raise ValueError(
            f"{op}: operands must have the same rank, got shapes {shapes}: add an "
            "axis, as in h[:, None]"
        )
    return Pointwise(op, attributes)(tensors)


def aligned(x: SymbolicTensor, like: SymbolicTensor) -> SymbolicTensor:
    """Return x, repeated for each sample if it has no batch and the other one has."""
    if x.whole and not like.whole:
        made: SymbolicTensor = ForEachSample()([x, like])
        return made
    return x


def reshaped(x: SymbolicTensor, lengths: Sequence[Any]) -> Any:
    """Return x in another shape, of which None is the batch."""
    if list(lengths) == lengths_of(x):
        return x
    return Function("reshape", {"shape": tuple(lengths)})(x)


def reordered(x: SymbolicTensor, axes: Sequence[int]) -> Any:
    """Return x with its axes in another order."""
    if list(axes) == sorted(axes):
        return x
    return Function("transpose", {"axes": tuple(axes)})(x)


def of_one(name: str, op: str, summary: str) -> Any:
    """Return the function of an element-wise op of one tensor."""

    def function(x: Any) -> Any:
        return Function(op, {})(tensor_of(x, name))

    return _named(function, name, summary)


def of_two(name: str, op: str, summary: str) -> Any:
    """Return the function of an element-wise op of two tensors or numbers."""

    def function(x1: Any, x2: Any) -> Any:
        return binary(op, x1, x2)

    return _named(function, name, summary)


def _named(function: Callable[..., Any], name: str, summary: str) -> Any:
    function.__name__ = function.__qualname__ = name
    function.__module__ = "memcfg.nn.ops"
    function.__doc__ = summary
    return documented(function)
