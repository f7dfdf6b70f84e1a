"""Tasks that networks learn, in the habit of Keras, by memcfg and by Keras alike.

A task is a module with ``CHANCE``, the score without learning, ``WANTED``, the score to
reach, and ``train(k, own)``, which trains with `k`, `memcfg.nn` if `own` or `keras`
with PyTorch, and returns an `Outcome`. Both sides start from the same weights.
"""
