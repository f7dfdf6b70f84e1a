"""The tensors that the last pass through a model saved: their order and lifetimes."""

from __future__ import annotations

from dataclasses import dataclass, field

_RETRIES = 16  # passes after which a codec that saved too little is tried again


@dataclass(slots=True)
class Record:
    """One storage that a pass saved.

    Times count the storages saved and read since the pass began.
    """

    nbytes: int
    saved_at: int
    read_at: int | None = None  # the last time; None if it was not read
    refused: set[str] = field(default_factory=set)  # codecs that saved too little
    left: bool = False  # it moved to where there is more room
    leaves: bool = False  # it moved there in the pass before


class Passes:
    """Counts passes, and remembers the last one that ran backward.

    As soon as a pass saves another size than the last one did, the rest of it counts as
    unknown.
    """

    def __init__(self) -> None:
        self.count = 0  # of passes that ran backward
        self.records: list[Record] = []
        self._last: list[Record] = []
        # indices of storages, in the order in which they were first read
        self._order: list[int] = []
        self._last_order: list[int] = []
        self._place: dict[int, int] = {}  # index to position in the last order
        self._clock = 0
        self._known = False

    @property
    def was_read(self) -> bool:
        """Whether a storage was read back in this pass."""
        return bool(self._order)

    def begin(self) -> None:
        """Begin a pass."""
        if self._order:
            self.count += 1
            self._last, self._last_order = self.records, self._order
            self._place = {index: at for at, index in enumerate(self._order)}
            if self.count % _RETRIES == 0:
                for record in self._last:
                    record.refused = set()
        self.records, self._order = [], []
        self._clock = 0
        self._known = bool(self._last)

    def add(self, nbytes: int) -> Record:
        """Record that a storage is saved."""
        index = len(self.records)
        self._clock += 1
        record = Record(nbytes, self._clock)
        if self._known:
            self._known = index < len(self._last) and (
                self._last[index].nbytes == nbytes
            )
        if self._known:
            record.refused = set(self._last[index].refused)
            record.leaves = self._last[index].left
        self.records.append(record)
        return record

    def read(self, index: int, record: Record) -> None:
        """Record that a storage is read; storages of earlier passes are ignored."""
        self._clock += 1
        if not self._is_of_this_pass(index, record):
            return
        if record.read_at is None:
            self._order.append(index)
        record.read_at = self._clock

    def _is_of_this_pass(self, index: int, record: Record) -> bool:
        return index < len(self.records) and self.records[index] is record

    def weight(self, index: int, record: Record, nbytes: int) -> tuple[int, int]:
        """Return the rank of a storage for packing: bytes times the time it is held.

        In an unknown pass, backward is assumed to mirror forward, and the times are
        unknown: the largest storage goes first, the earliest among equals. The same
        holds for storages of earlier passes.
        """
        if not (self._known and self._is_of_this_pass(index, record)):
            return nbytes, -index
        last = self._last[index]
        end = last.read_at if last.read_at is not None else last.saved_at
        return nbytes * (end - last.saved_at + 1), -index

    def next_after(self, index: int, count: int) -> list[int]:
        """List the storages that are probably read next."""
        if self._known and index in self._place:
            at = self._place[index] + 1
            return self._last_order[at : at + count]
        return list(range(index - 1, max(index - 1 - count, -1), -1))
