"""Fine-tuning of a weight by a product of two small ones, with the weight frozen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from memcfg.nn._argument_checks import integer, real
from memcfg.nn.initializers import Initializer, get_initializer
from memcfg.nn.layers._layer import Layer, WeightSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Scope


class _LowRank(NamedTuple):
    """The rank and the scale of an addition, and its first values."""

    rank: int
    alpha: float
    a_initializer: Initializer
    b_initializer: Initializer


class _Adaptable(Layer):
    """A layer of a weight that can be frozen, and adapted by an addition of low rank.

    References
    ----------
    Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022.
    """

    __slots__ = ("_low_rank",)

    _adapted: ClassVar[str] = "kernel"  # the weight

    def _begin_low_rank(self, rank: Any, alpha: Any) -> None:
        """Set the rank of the addition; None: there is none."""
        self._low_rank: _LowRank | None = None
        if rank is not None:
            self._low_rank = self._made_low_rank(rank, alpha, "he_uniform", "zeros")
        elif alpha is not None:
            raise ValueError(
                f"{type(self).__name__}: lora_alpha is a scale: pass lora_rank, too"
            )

    def _made_low_rank(self, rank: Any, alpha: Any, a: Any, b: Any) -> _LowRank:
        kind = type(self).__name__
        size = integer(rank, f"{kind}: lora_rank")
        scale = float(size) if alpha is None else real(alpha, f"{kind}: lora_alpha")
        return _LowRank(size, scale, get_initializer(a), get_initializer(b))

    @property
    def lora_rank(self) -> int | None:
        """The rank of the addition to the frozen weight; None without one."""
        return None if self._low_rank is None else self._low_rank.rank

    @property
    def lora_alpha(self) -> float | None:
        """The addition is the product times this by the rank; None without one."""
        return None if self._low_rank is None else self._low_rank.alpha

    @property
    def lora_enabled(self) -> bool:
        """Whether the weight is frozen, and an addition is trained."""
        return self._low_rank is not None

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer: Any = "he_uniform",
        b_initializer: Any = "zeros",
    ) -> None:
        """Freeze the weight, and train a product of two small ones that is added.

        The bias, if there is one, is trained as before. Compile the model again.

        Parameters
        ----------
        rank : int
            The common length of the two weights, ``lora_NAME_a`` and ``lora_NAME_b``.
        lora_alpha : float, optional
            The product is scaled by ``lora_alpha / rank``; by default `rank`.
        a_initializer, b_initializer : str or Initializer
            What draws both; by default the product is 0.

        Raises
        ------
        ValueError
            If the layer has no weights yet, has a constraint of the weight, or has been
            given a rank before.
        RuntimeError
            If the layer belongs to several models, or to a function.
        """
        what = f"layer {self.name!r}: enable_lora"
        before = self._weight_specs
        if before is None:
            raise ValueError(
                f"{what} needs weights: call the layer, or build its model"
            )
        if self._low_rank is not None:
            raise ValueError(f"{what}: its rank is {self.lora_rank}, and stays")
        if self._adapted in self._constraints:
            raise ValueError(
                f"{what} freezes {self._adapted!r}: leave its constraint out"
            )
        owner = self._model
        if owner is not None and (self._users > 1 or not hasattr(owner, "_renew")):
            raise RuntimeError(
                f"{what}: it belongs to several models or to a function: enable it "
                "before they use the layer, or compile the model again first"
            )
        made = self._made_low_rank(rank, lora_alpha, a_initializer, b_initializer)
        try:
            self._low_rank = made
            self._weight_specs = self._with_low_rank(before)
            if owner is not None:
                owner._renew()
        except BaseException:
            self._low_rank, self._weight_specs = None, before
            raise

    def _with_low_rank(self, specs: Sequence[WeightSpec]) -> tuple[WeightSpec, ...]:
        """Return weights with the frozen one, and those of the addition."""
        low = self._low_rank
        if low is None:
            return tuple(specs)
        name = self._adapted
        kept = [replace(x, trainable=x.name != name and x.trainable) for x in specs]
        shape = next(each.shape for each in specs if each.name == name)
        parts = (
            ("a", (*shape[:-1], low.rank), low.a_initializer),
            ("b", (low.rank, shape[-1]), low.b_initializer),
        )
        penalty = self._regularizers.get(name)
        made = [
            WeightSpec(f"lora_{name}_{part}", lengths, start, regularizer=penalty)
            for part, lengths, start in parts
        ]
        return (*kept, *made)

    def _scaled(self, scope: Scope, x: int) -> int:
        """Append the product with the scale of the addition."""
        assert self._low_rank is not None
        scale = {"factor": self._low_rank.alpha / self._low_rank.rank, "term": -0.0}
        return scope.apply("affine", (x,), scale)[0]

    def _through(self, scope: Scope, y: int, x: int) -> int:
        """Append the sum of y and the last axis of x times the second weight."""
        b = scope.weights[f"lora_{self._adapted}_b"]
        (more,) = scope.apply("dense", (self._scaled(scope, x), b))
        return scope.apply("add", (y, more))[0]
