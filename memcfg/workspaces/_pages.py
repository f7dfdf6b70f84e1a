"""Where the page of a workspace comes from.

Owns the choice of the pool, and the file of an "mmap" workspace. Refuses to take the
page: the native core does.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING
from uuid import uuid4
from weakref import ref

from memcfg.config import AllocationPolicy, LocationPolicy, logical_device
from memcfg.errors import WorkspaceConfigError
from memcfg.memory import Resource, mmap_file

if TYPE_CHECKING:
    from typing import Any

    from memcfg.config import WorkspaceConfig
    from memcfg.devices import Device
    from memcfg.memory import MappedFile

__all__ = ["Ground", "file_of", "rules_of"]


class Ground:
    """The resource that a workspace stands on: the one asked for, or a device's pool.

    Parameters
    ----------
    resource : Resource or None
        None is the pool of the current device.

    Attributes
    ----------
    resource : Resource
        The resource.
    """

    def __init__(self, resource: Resource | None) -> None:
        self._device: ref[Device] | None = None
        if resource is None:
            device = logical_device(None)
            self._device = ref(device)
            resource = device.pool
        elif not isinstance(resource, Resource):
            raise TypeError(
                f"resource is a Resource of memcfg.memory, not {resource!r}"
            )
        self.resource = resource

    @property
    def forgotten(self) -> bool:
        """Whether it is of a device that there is no more, after a reset."""
        return self._device is not None and self._device() is None


def file_of(config: WorkspaceConfig, name: str) -> MappedFile | None:
    """Map the file of a workspace; None for one in memory."""
    if config.location is LocationPolicy.RAM:
        return None
    path = config.path
    if path is None:
        path = os.path.join(tempfile.gettempdir(), f"memcfg-{uuid4().hex}")
    try:
        return mmap_file(
            path,
            config.initial_size or None,
            overwrite=config.overwrite,
            delete=config.path is None,
        )
    except ValueError as error:
        step = (
            "Leave initial_size out to take the file as long as it is, make it larger "
            "to let the file grow, or write overwrite=True to replace the file."
            if config.initial_size
            else "Name an initial_size: the file has no bytes of its own."
        )
        raise WorkspaceConfigError(f"workspace {name!r}: {error}. {step}") from error


def rules_of(config: WorkspaceConfig, file: MappedFile | None) -> dict[str, Any]:
    """Write a configuration in the words of the native core."""
    lavish = config.allocation is AllocationPolicy.OVERALLOCATE and file is None
    return {
        "initial_size": config.initial_size if file is None else file.nbytes,
        "min_size": config.min_size,
        "max_size": config.max_size if file is None else None,
        "overallocation": config.overallocation if lavish else 0.0,
        "circular": config.circular,
        "ring_blocks": config.ring_blocks,
        "learning": config.learning.value,
        "learning_cycles": config.learning_cycles,
        "spill": config.spill.value,
        "on_escape": config.on_escape.value,
        "reclaim": config.reclaim,
    }
