"""What tf.data's shuffle does, in plain Python: words, seeds of passes, and orders.

Written after the definition of Philox4x32-10 (Salmon et al., SC 2011) and TensorFlow's
description of its buffer. Shares no code with memcfg.
"""

from __future__ import annotations

MASK = 2**32 - 1
GRAPH_SEED = 87654321


def philox(counter, key):
    words, (a, b) = list(counter), key
    for _ in range(10):
        low, high = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            high >> 32 ^ words[1] ^ a,
            high & MASK,
            low >> 32 ^ words[3] ^ b,
            low & MASK,
        ]
        a, b = a + 0x9E3779B9 & MASK, b + 0xBB67AE85 & MASK
    return words


def words_of(key, stream):
    block = 0
    key, stream = key % 2**64, stream % 2**64
    while True:
        counter = (block & MASK, block >> 32, stream & MASK, stream >> 32)
        yield from philox(counter, (key & MASK, key >> 32))
        block += 1


def seeds_of(seed, reshuffle=True):
    """Yield the seeds of pass after pass."""
    seed %= 2**31 - 1
    words = words_of(GRAPH_SEED, seed)
    while True:
        yield (next(words), next(words)) if reshuffle else (GRAPH_SEED, seed)


def shuffled(items, size, seeds):
    """Return a pass: a list whose first item is the oldest."""
    words = words_of(*seeds)
    held, out = [], []

    def take():
        chosen = next(words) % len(held)
        out.append(held[chosen])
        held[chosen] = held[0]
        del held[0]

    for item in items:
        held.append(item)
        if len(held) == size:
            take()
    while held:
        take()
    return out
