"""What ``memcfg COMMAND`` runs, one module a command.

Each module has ``add_parser``, which adds the command to the parser of
`memcfg.cli` and sets ``run``, a function from the arguments to an exit status.
Refuses computation: a command asks the rooms below and prints.
"""

from __future__ import annotations

__all__: list[str] = []
