"""What the last pass through a model saved, in which order, and for how long."""

from __future__ import annotations

from dataclasses import dataclass, field

_RETRIES = 16  # passes after which a codec that saved too little is tried again


@dataclass(slots=True)
class Record:
    """One storage that a pass saved.

    Times are counts of what was saved or read since the pass began.
    """

    nbytes: int
    saved_at: int
    read_at: int | None = None  # the last time; None: it was not
    refused: set[str] = field(default_factory=set)  # codecs that saved too little
    left: bool = False  # for where there is more room
    leaves: bool = False  # as in the pass before


class Passes:
    """Counts passes, and remembers the last one that ran backward.

    A pass that saves other sizes than the last one, from some storage on, is not
    known from there on.
    """

    def __init__(self) -> None:
        self.count = 0  # of those that ran backward
        self.records: list[Record] = []
        self._last: list[Record] = []
        self._order: list[int] = []  # what was read, each when it was read first
        self._last_order: list[int] = []
        self._place: dict[int, int] = {}  # in the last order
        self._clock = 0
        self._known = False

    @property
    def was_read(self) -> bool:
        """Whether something was read back in this pass."""
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
        """Say that a storage is saved."""
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
        """Say that a storage is read; of an earlier pass it changes nothing here."""
        self._clock += 1
        if not self._is_of_this_pass(index, record):
            return
        if record.read_at is None:
            self._order.append(index)
        record.read_at = self._clock

    def _is_of_this_pass(self, index: int, record: Record) -> bool:
        return index < len(self.records) and self.records[index] is record

    def weight(self, index: int, record: Record, nbytes: int) -> tuple[int, int]:
        """Rank what should go first: bytes times the time that they are held.

        In a pass that is not known, backward is the mirror of forward, and how long
        that is nobody knows: the largest goes first, of equal ones the earliest. So it
        is with what an earlier pass saved.
        """
        if not (self._known and self._is_of_this_pass(index, record)):
            return nbytes, -index
        last = self._last[index]
        end = last.read_at if last.read_at is not None else last.saved_at
        return nbytes * (end - last.saved_at + 1), -index

    def next_after(self, index: int, count: int) -> list[int]:
        """List what is probably read next."""
        if self._known and index in self._place:
            at = self._place[index] + 1
            return self._last_order[at : at + count]
        return list(range(index - 1, max(index - 1 - count, -1), -1))
