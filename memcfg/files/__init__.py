"""Files that are written whole or not at all, and opened only if they are files."""

from memcfg.files._atomic import write_atomically
from memcfg.files._opening import open_file, read_file
from memcfg.files._temporary import remove_abandoned

__all__ = ["open_file", "read_file", "remove_abandoned", "write_atomically"]
