"""Files that are written whole or not at all, and opened only if they are files."""

from memcfg.files._atomic import write_atomically
from memcfg.files._held_file import HeldFile, read_held_file
from memcfg.files._matching import matching_files
from memcfg.files._opening import open_file, read_file
from memcfg.files._private import (
    make_private_folder,
    open_private_file,
    require_private_folder,
)
from memcfg.files._stored_array import StoredArray
from memcfg.files._temporary import remove_abandoned

__all__ = [
    "HeldFile",
    "StoredArray",
    "make_private_folder",
    "matching_files",
    "open_file",
    "open_private_file",
    "read_file",
    "read_held_file",
    "remove_abandoned",
    "require_private_folder",
    "write_atomically",
]
