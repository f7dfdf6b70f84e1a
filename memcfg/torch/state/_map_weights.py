"""Weights mapped from a safetensors file, as parameters of a model."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from memcfg._checks import named_arguments
from memcfg.torch.spill._tensor_files import TensorFile
from memcfg.torch.state._pieces import SMALL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
_LENGTH = struct.Struct("<Q")
_HEADER = 100 * 2**20  # bytes: the most that the format allows


def _entries(path: str) -> tuple[dict[str, Any], int]:
    """Return the entries of a file's header, and where its data begin."""
    size = os.stat(path).st_size
    with open(path, "rb") as file:
        first = file.read(_LENGTH.size)
        length = _LENGTH.unpack(first)[0] if len(first) == _LENGTH.size else 0
        if not 0 < length <= min(_HEADER, size - _LENGTH.size):
            raise ValueError(f"{path} is not a safetensors file")
        text = file.read(length)
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        begin = _LENGTH.size + length
        for name, each in entries.items():
            start, end = each["data_offsets"]
            count = each["dtype"] and 1
            for extent in each["shape"]:
                count *= extent
            dtype = _DTYPES.get(each["dtype"])
            if dtype is None:
                raise ValueError(
                    f"{path}: {name} is {each['dtype']}, which has no dtype"
                )
            if end - start != count * dtype.itemsize or not 0 <= start <= end <= (
                size - begin
            ):
                raise ValueError(f"{path}: the bytes of {name} do not fit its shape")
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a safetensors file ({error})") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not a safetensors file ({error})") from None
    return entries, begin


@named_arguments
def map_weights(
    model: nn.Module,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    names: Mapping[str, str] | None = None,
) -> list[str]:
    """Map the weights of a model from safetensors files, without reading them.

    Parameters become tensors over the mapped bytes, whose pages the system reads when
    somebody touches them. A planned step (`budget`) does not touch them: it reads each
    weight into memory before its use, the next ones ahead, and frees it after its use.
    Freeze the weights (``requires_grad_(False)``): planned steps read the files, so a
    mapped weight that was changed in memory is an error there.

    Small parameters, up to 64 KiB, and buffers are copied into memory.

    Parameters
    ----------
    model : torch.nn.Module
        The model. It may have been made on the meta device; its parameters are frozen
        where they are mapped.
    path : str, path or sequence of them
        The files.
    names : mapping of str to str or None, default None
        The names in the files by the names of parameters and buffers, where they
        differ.

    Returns
    -------
    list of str
        The names of parameters and buffers that the files do not have, unchanged.

    Raises
    ------
    OSError
        If a file cannot be read.
    TypeError
        If `model` is not a module.
    ValueError
        If a file is not in the safetensors format, or a tensor has another shape than
        the parameter. The model is unchanged then.

    Notes
    -----
    The dtype is that of the file. Nothing is converted, since what is mapped has the
    bytes of the file.

    Examples
    --------
    >>> import memcfg.torch as mt, torch
    >>> with torch.device("meta"):
    ...     model = torch.nn.Linear(512, 512)
    >>> mt.map_weights(model, "linear.safetensors")  # doctest: +SKIP
    []
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a torch.nn.Module, not {type(model).__name__}")
    single = isinstance(path, (str, os.PathLike))
    paths = [path] if single else list(path)  # type: ignore[arg-type]
    found: dict[str, tuple[str, int, torch.dtype, tuple[int, ...]]] = {}
    for each in map(os.fspath, paths):  # type: ignore[arg-type]
        entries, begin = _entries(each)
        for name, entry in entries.items():
            offset = begin + entry["data_offsets"][0]
            shape = tuple(entry["shape"])
            found[name] = each, offset, _DTYPES[entry["dtype"]], shape
    files: dict[str, TensorFile] = {}
    given = names or {}
    chosen, missing = [], []
    own = [(name, value, True) for name, value in model.named_parameters()]
    own += [(name, value, False) for name, value in model.named_buffers()]
    for name, value, is_parameter in own:
        entry = found.get(given.get(name, name))
        if entry is None:
            missing.append(name)
            continue
        if entry[3] != tuple(value.shape):
            raise ValueError(
                f"{name} has the shape {tuple(value.shape)}, and {entry[3]} in "
                f"{entry[0]}"
            )
        chosen.append((name, value, is_parameter, entry))
    for name, value, is_parameter, (source, offset, dtype, shape) in chosen:
        if source not in files:
            files[source] = TensorFile.of(source)
        made = files[source].tensor(offset, dtype, shape)
        if not is_parameter or made.nbytes <= SMALL:
            made = made.clone()
        _assign(model, name, value, made, is_parameter=is_parameter)
    return missing


def _assign(
    model: nn.Module,
    name: str,
    value: torch.Tensor,
    made: torch.Tensor,
    *,
    is_parameter: bool,
) -> None:
    """Replace a tensor of a model, in all modules that share it."""
    if is_parameter:
        kept = value.requires_grad and not value.is_meta and made.nbytes <= SMALL
        new: torch.Tensor = nn.Parameter(made, requires_grad=kept)
    else:
        new = made
    for module in model.modules():
        held = module._parameters if is_parameter else module._buffers
        for key, each in list(held.items()):
            if each is value:
                held[key] = new
