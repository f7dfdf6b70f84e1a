"""The report on saved tensors: what a pass saved, and where it was held.

Owns the values and their printed form. Counting is the task of contexts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg._html import report_of_text
from memcfg._terminal import writable
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SavedCodingEntry", "SavedTensorsReport"]


@dataclass(frozen=True, slots=True)
class SavedCodingEntry:
    """What one codec encoded in a pass.

    Parameters
    ----------
    codec : str
        The codec.
    tensors : int
        The number of storages that it encoded.
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
        """The ratio of the tensors' bytes to those of their codes."""
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
        The bytes held now, by how they are held.
    tensors : int
        The number of tensors that autograd saved in this pass, or in the last one.
    shared : int
        The number of these that need no further memory: parameters, buffers and inputs
        of modules, their views, and tensors over a storage that was already saved.
    saved_bytes : int
        The bytes of all storages that were saved, as PyTorch alone would hold them.
    codings : tuple of SavedCodingEntry
        One entry for each codec that was used.
    spilled_bytes : int
        The bytes that were written to the file, encoded or not.
    read_bytes : int
        The bytes that were read back.
    read_ahead_bytes : int
        The bytes of these that were being read before autograd needed them.
    file_bytes : int
        The size of the file, or of the page-locked memory; 0 if there is none.
    is_on_host : bool, default False
        Whether they are in page-locked memory.
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
        """Return the report as text of at most 80 columns."""
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

    def _repr_html_(self) -> str:
        """Return the same for notebooks."""
        return report_of_text(str(self))
