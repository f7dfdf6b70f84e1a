"""The execution of a pass: threads, queues, memory blocks and AUTOTUNE."""

__all__: list[str] = []
