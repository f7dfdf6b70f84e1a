"""The mapped files of a model's workspaces, open while a loaded program uses them."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING
from uuid import uuid4

from memcfg.errors import WorkspaceConfigError
from memcfg.memory import mmap_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memcfg.memory import MappedFile
    from memcfg.runtime._placement import Buffer

__all__ = ["MappedWorkspaces"]


class MappedWorkspaces:
    """Mapping of workspaces to files, which the programs of a model share."""

    def __init__(self) -> None:
        self._files: dict[Buffer, MappedFile] = {}

    def get(self, buffer: Buffer) -> MappedFile:
        """Return the file of a workspace, opening it if necessary.

        Raises OSError if the file cannot be used, or WorkspaceConfigError if its length
        contradicts the workspace.
        """
        result = self._files.get(buffer)
        if result is not None and not result.closed:
            return result
        config = buffer.config
        assert config is not None
        path = config.path
        if path is None:
            path = os.path.join(tempfile.gettempdir(), f"memcfg-{uuid4().hex}")
        try:
            made = mmap_file(
                path,
                buffer.nbytes,
                overwrite=config.overwrite,
                delete=config.path is None,
            )
        except ValueError as error:
            raise WorkspaceConfigError(f"workspace {buffer.name!r}: {error}") from error
        self._files[buffer] = made
        return made

    def keep(self, buffers: Iterable[Buffer]) -> None:
        """Drop all files except these; a file closes when no array uses it."""
        wanted = set(buffers)
        for buffer in [each for each in self._files if each not in wanted]:
            del self._files[buffer]
