"""The report on saved tensors: what a pass saved, and where it was.

Owns the values and how they are printed. Refuses to count; contexts do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg._terminal import writable
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SavedCodingEntry", "SavedTensorsReport"]


@dataclass(frozen=True, slots=True)
class SavedCodingEntry:
    """What a codec did in a pass.

    Parameters
    ----------
    codec : str
        The codec.
    tensors : int
        How many storages it encoded.
    tensor_bytes : int
        Their bytes.
    used_bytes : int
        The bytes of their codes, rounded up to 64 for each MiB of a tensor.
    """

    codec: str
    tensors: int
    tensor_bytes: int
    used_bytes: int

    @property
    def ratio(self) -> float:
        """How many times fewer bytes the codes have."""
        return self.tensor_bytes / self.used_bytes


@dataclass(frozen=True)
class SavedTensorsReport:
    """What a forward and backward pass saved for its gradients.

    Parameters
    ----------
    limit_bytes : int
        The limit in bytes.
    peak_bytes : int
        The most bytes that were held at a time since the context was made.
    current_bytes : int
        The bytes that are held now.
    by_kind : mapping of str to int
        The same by how they are held.
    tensors : int
        How often autograd saved a tensor in this pass, or the last one.
    shared : int
        How many of these cost nothing: parameters, buffers and inputs of modules, their
        views, and tensors over a storage that was saved already.
    saved_bytes : int
        The bytes of all storages that were saved: what plain PyTorch keeps of them.
    codings : tuple of SavedCodingEntry
        One entry a codec that was used.
    spilled_bytes : int
        The bytes that were written to the file, encoded or not.
    read_bytes : int
        The bytes that were read from it.
    read_ahead_bytes : int
        How many of these were on their way before they were asked for.
    file_bytes : int
        The size of the file, or of the page-locked memory; 0 where there is none.
    is_on_host : bool, default False
        Whether that is page-locked memory.
    """

    limit_bytes: int
    peak_bytes: int
    current_bytes: int
    by_kind: Mapping[str, int]
    tensors: int
    shared: int
    saved_bytes: int
    codings: tuple[SavedCodingEntry, ...]
    spilled_bytes: int
    read_bytes: int
    read_ahead_bytes: int
    file_bytes: int
    is_on_host: bool = False

    def __str__(self) -> str:
        """Return the report as text of 80 columns at most."""
        of = f"in {self.tensors - self.shared} of {self.tensors} tensors"
        rows = [
            ("limit", self.limit_bytes, ""),
            ("peak", self.peak_bytes, ""),
            ("held now", self.current_bytes, ""),
            ("saved", self.saved_bytes, of),
        ]
        for each in self.codings:
            message = (
                f"for {format_bytes(each.tensor_bytes)}, {each.ratio:.2f} times less"
            )
            rows.append((each.codec, each.used_bytes, message))
        if self.file_bytes:
            kind = "page-locked memory" if self.is_on_host else "a file"
            file = f"to {kind} of {format_bytes(self.file_bytes)}"
            ahead = f"{format_bytes(self.read_ahead_bytes)} of them ahead"
            rows.append(("spilled", self.spilled_bytes, file))
            rows.append(("read back", self.read_bytes, ahead))
        lines = ["Saved tensors"]
        for name, nbytes, message in rows:
            size = format_bytes(nbytes, exact=not message)
            lines.append(f"  {name:<12} {size:<26} {message}".rstrip())
        return writable("\n".join(lines))
