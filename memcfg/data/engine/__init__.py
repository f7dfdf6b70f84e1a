"""What runs a pass: threads, queues, blocks of memory, and what AUTOTUNE chooses."""

__all__: list[str] = []
