"""The softmax that an attention module of another library has been given in place of its own.

Shapes: B batch, H heads, N queries, M keys, D head dimension.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lab.attention.layers import MultiHead, Tap
from lab.attention.masks import Causal, Mask
from lab.attention.normaliser import Normaliser, check_biased, check_causal
from lab.attention.rule import TemperatureRule
from lab.attention.schedule import HeatTreatment
from lab.console import LabError
from lab.models.projections import Layout, layout_seen, rows_of_projections, width_of_queries
from lab.models.softmaxes import LayerSoftmax

# Name of the new softmax as a submodule of its attention module: state dicts hold its parameters under this name.
NAME = "eureka_softmax"

# Names that modules and their configs give to the same thing.
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
_HEAD_DIM = ("qk_head_dim", "head_dim", "attention_head_size", "key_value_proj_dim", "dim_head", "key_dim")
# Where input and output differ in width (SAM 2's Hiera), heads are those of the output.
_WIDTH = ("dim_out", "embed_dim", "hidden_size", "n_embd", "d_model", "dim", "width")
_LONGEST = ("max_position_embeddings",)
_SCALE = ("scaling", "scale", "softmax_scale")
# A number that hides a key: what is added is infinite, the least of its dtype, or -10,000, perhaps with a bias already
# added to it. Biases alone are far above it.
_HIDDEN = -5000.0
# Swin hides keys by -100. The biases of ALiBi are as low, but come down to there without a gap.
_LOW, _GAP = -50.0, 40.0


class Heads:
    """Heads of an attention module of another library, read from its attributes or its config.

    Raises:
        LabError: if the module does not tell them.
    """

    def __init__(self, module: nn.Module) -> None:
        heads = _first_number(module, _HEADS)
        if heads is None:
            raise LabError(
                f"{type(module).__name__} does not tell its number of heads: give it attributes num_heads and head_dim"
            )
        dim, width = _first_number(module, _HEAD_DIM), _first_number(module, _WIDTH) or width_of_queries(module)
        if dim is None and (width is None or width % heads):
            raise LabError(f"{type(module).__name__} does not tell the dimension of its heads: give it a head_dim")
        self.heads = heads
        self.head_dim = dim or (width or 0) // heads
        # Number of keys that the module is made for; None where it does not tell.
        self.longest = _first_number(module, _LONGEST)
        scales = [value for name in _SCALE if isinstance(value := getattr(module, name, None), float) and value > 0]
        # What scores are multiplied by before the softmax.
        self.scale = scales[0] if scales else 1 / math.sqrt(self.head_dim)
        # The factor that is in the queries already where a module calls attention with scale=1 (OPT, Whisper); else 1.
        self.of_queries = scales[0] if scales else 1.0


def _first_number(module: nn.Module, names: tuple[str, ...]) -> int | None:
    for place in (module, getattr(module, "config", None)):
        for name in names:
            value = getattr(place, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return None


class ReplacedSoftmax(MultiHead):
    """Rule, normaliser and tap of an attention module of another library; each subclass reaches other such modules.

    Args:
        owner: the attention module, which keeps all else: projections, dropout, cache.
        shape: its heads.
        softmax: rule and normaliser.
        own_scale: True where the rule's temperature is the module's own scale; its calls then have to use that scale.
        schedule: moves tau over training; None leaves it alone.
    """

    # How a fused projection is laid out; None until a call has told it.
    _layout: Layout | None = None
    # Names of the parameters that belong to softmaxes of other layers, too.
    shared: tuple[str, ...] = ()

    def __init__(
        self,
        owner: nn.Module,
        shape: Heads,
        softmax: LayerSoftmax,
        own_scale: bool,
        schedule: HeatTreatment | None = None,
    ) -> None:
        super().__init__(shape.heads * shape.head_dim, shape.heads, softmax.rule, softmax.normaliser)
        # In a tuple, so that torch does not take the owner for a submodule of its own submodule.
        self._owner = (owner,)
        self.expected_scale = shape.scale if own_scale else None
        self._of_queries = shape.of_queries
        self.schedule = schedule
        self.takes_bias = _satisfies(check_biased, softmax)
        self.before: Any = None
        # Told by the module, or later by a call of it (mark_causal).
        self.is_causal = bool(getattr(owner, "is_causal", False))

    @staticmethod
    def found_in(model: nn.Module) -> list[nn.Module]:
        """The attention modules of a model that this class reaches, from the first to the last.

        Raises:
            LabError: if the softmax of one of them cannot be replaced.
        """
        raise NotImplementedError

    def state_before(self) -> Any:
        """State that :meth:`uninstall` puts back.

        It is asked of all modules before the first is changed, since they may share a config.
        """
        raise NotImplementedError

    def install(self, before: Any) -> None:
        """Makes this the softmax of its owner."""
        self.before = before
        self.owner.add_module(NAME, self)

    def check_uninstall(self) -> None:
        """Checks that :meth:`uninstall` would undo nothing that was done since.

        Raises:
            LabError: if it would.
        """
        if getattr(self.owner, NAME) is not self:
            raise wrapped_since(self.owner)

    def uninstall(self) -> None:
        """Puts the owner back as it was."""
        delattr(self.owner, NAME)

    @property
    def owner(self) -> nn.Module:
        """The attention module that has this softmax."""
        return self._owner[0]

    @property
    def itself(self) -> Self:
        """This softmax; of a wrapper that passes attributes on (PEFT's), the softmax that it uses now."""
        return self

    @property
    def asked(self) -> Self:
        """The softmax that the owner asks: this one, unless PEFT trains a copy of it (``modules_to_save``)."""
        held: Any = getattr(self.owner, NAME)
        return held.itself

    @property
    def in_use(self) -> bool:
        return self.asked is self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        if id(self.owner) not in memo:
            # Copied alone, as PEFT does: the copy is a softmax of the same module, and can take off what is on it.
            if self.shared:
                raise LabError(
                    f"{type(self.owner).__name__} shares {', '.join(self.shared)} with other layers, and a copy of its "
                    "softmax alone, as PEFT's modules_to_save makes one, would train its own: take a softmax whose "
                    'layers share nothing, as granularity="layer_head" in place of "head"'
                )
            alike = [self.owner, *(value for value in vars(self).values() if isinstance(value, RemovableHandle))]
            memo.update((id(one), one) for one in alike)
        new = self.__class__.__new__(self.__class__)
        memo[id(self)] = new
        new.__setstate__(copy.deepcopy(self.__dict__, memo))
        return new

    def of_projections(self, of: Callable[[Any], Tensor | None]) -> dict[str, Tensor]:
        return rows_of_projections(self.owner, self.num_heads, self.head_dim, self._layout, of)

    def of_call(
        self,
        q_BHND: Tensor,
        k_BGMD: Tensor,
        v_BGMD: Tensor,
        mask: Tensor | None,
        is_causal: bool,
        dropout: float,
        scale: float | None,
        bias: Tensor | None = None,
        tap: Tap | None = None,
    ) -> Tensor:
        """z_BHND of the module's attention call, with the arguments of ``F.scaled_dot_product_attention``.

        Args:
            q_BHND: queries; where a module attends within windows, [B, windows, H, N, D] or [B, H, windows, N, D], and
                keys and values likewise.
            k_BGMD: keys; each of the G heads is repeated for its group of query heads.
            v_BGMD: values.
            mask: bool, True where a query may attend to a key; or numbers to add to the scores.
            is_causal: with no mask: query i sees the first i + 1 keys.
            dropout: of the weights.
            scale: of the scores; None is 1 / sqrt(D).
            bias: added to the scaled scores, beside the mask.
            tap: for what it is computed from; None: that of the recorder, if it listens.

        Raises:
            LabError: if the call is one that the softmax was not made for.
        """
        if is_causal and mask is not None:
            raise LabError(
                f"{type(self.owner).__name__} gives attention both a mask and is_causal: put both into one mask"
            )
        axis = self._windows(q_BHND)
        # A compiler would compile again once it is told.
        if not torch.compiler.is_compiling() and self._layout is None:
            self._layout = layout_seen(v_BGMD, 1 if axis is None else 3 - axis, self.num_heads)
        if axis is not None and mask is None and bias is None:
            q, k, v = (x.movedim(axis, 1).flatten(0, 1) for x in (q_BHND, k_BGMD, v_BGMD))
            z = self.of_call(q, k, v, None, is_causal, dropout, scale, tap=tap)
            return z.unflatten(0, (len(q_BHND), q_BHND.shape[axis])).movedim(1, axis)
        if scale == 1 and self._of_queries != 1:
            # The temperature of a rule holds for queries as they are projected.
            q_BHND, scale = q_BHND / self._of_queries, self._of_queries
        self._check(q_BHND, scale)
        if mask is not None and mask.dtype.is_floating_point:
            mask, bias = self._parted(mask, bias)
        if bias is not None:
            self._require(check_biased)
        if mask is not None and not self.is_causal and self.couples_queries and hides_later(mask, q_BHND.shape[-2]):
            self.mark_causal()
        # Under autocast, rotary positions leave queries and keys in float32 beside values in half precision.
        q_BHND, k_BGMD = q_BHND.to(v_BGMD.dtype), k_BGMD.to(v_BGMD.dtype)
        N, M = q_BHND.shape[-2], k_BGMD.shape[-2]
        if self.num_heads % k_BGMD.shape[1]:
            raise LabError(
                f"{type(self.owner).__name__} has {self.num_heads} heads of queries and {k_BGMD.shape[1]} of keys: "
                "give it a number of key heads that divides its number of heads"
            )
        k, v = (_repeated(x, self.num_heads) for x in (k_BGMD, v_BGMD))
        known: Mask = mask
        if is_causal and N <= M:
            # As with an empty cache of fixed size: no query sees the keys after the first N.
            k, v, known = k[..., :N, :], v[..., :N, :], Causal(N, N, k.device)
            bias = None if bias is None else bias.expand(*bias.shape[:-1], M)[..., :N]
        elif is_causal:
            known = Causal(N, N, k.device).rows(0, N)[:, :M]
        return self.attend(q_BHND, k, v, known, dropout, bias, tap)

    def _parted(self, added: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(mask, bias) of numbers that a module adds to its scores: keys are hidden by huge negative ones."""
        allowed = added > _hidden_from(added)
        seen = added.masked_fill(~allowed, 0.0)
        # nn.TransformerEncoder makes numbers of bool masks: 0 is no bias, unless it is learned and still 0. A compiler
        # cannot look at numbers, and a bias of 0 is right, too, where the softmax takes one.
        blind = torch.compiler.is_compiling() and self.takes_bias
        if not (added.requires_grad or blind or bool(seen.any())):
            return allowed, bias
        return allowed, seen if bias is None else bias + seen

    def mark_causal(self) -> None:
        """Notes that a call is causal: some modules (those of CLIP's text tower) tell it only by their calls.

        Raises:
            LabError: if a query would depend on later ones through the rule or the normaliser.
        """
        if not self.is_causal:
            self._require(check_causal)
            self.is_causal = True

    def _windows(self, q: Tensor) -> int | None:
        """The axis of windows among those of five-dimensional queries; None where there is none, or it is not clear."""
        axes = [axis for axis in (1, 2) if q.dim() == 5 and q.shape[3 - axis] == self.num_heads]
        return axes[0] if len(axes) == 1 else None

    def _require(self, check: Callable[[TemperatureRule, Normaliser], None]) -> None:
        """Runs a check of rule and normaliser; its error names the module, too."""
        try:
            check(self.rule, self.normaliser)
        except ValueError as error:
            raise LabError(f"{type(self.owner).__name__}: {error}") from error

    def _check(self, q_BHND: Tensor, scale: float | None) -> None:
        name = type(self.owner).__name__
        if q_BHND.dim() != 4 or (q_BHND.shape[1], q_BHND.shape[-1]) != (self.num_heads, self.head_dim):
            raise LabError(
                f"{name} calls attention with queries {list(q_BHND.shape)}, but its softmax was made for [batch, "
                f"{self.num_heads}, tokens, {self.head_dim}]"
            )
        # Parameters are offloaded together, and buffers: to look at all of them took twice as long, at every call.
        held = (self.rule.tau, next(self.parameters(), None))
        if not q_BHND.is_meta and any(one is not None and one.is_meta for one in held):
            raise LabError(
                f"{name} was offloaded after its softmax was replaced, and accelerate does not bring back what that "
                "holds: offload the model first, then call lab.replace_softmax"
            )
        used = 1 / math.sqrt(self.head_dim) if scale is None else scale
        # By hand: torch.compile cannot read math.isclose of a scale that depends on a length that varies.
        if self.expected_scale is not None and abs(used - self.expected_scale) > 1e-5 * self.expected_scale:
            raise LabError(
                f"{name} scales its scores by {used:.4g}, but {self.expected_scale:.4g} was expected: set its "
                f"temperature, as in tau={1 / used:.4g}"
            )


def _satisfies(check: Callable[[TemperatureRule, Normaliser], None], softmax: LayerSoftmax) -> bool:
    try:
        check(softmax.rule, softmax.normaliser)
    except ValueError:
        return False
    return True


def _hidden_from(added: Tensor) -> Tensor | float:
    """The number at and below which what is added to scores hides a key."""
    if not added.numel():
        return _HIDDEN
    low = added <= _LOW
    least = added.masked_fill(low, math.inf).amin()
    gap = least - added.masked_fill(~low, -math.inf).amax()
    return torch.where(least.isfinite() & (gap >= _GAP), _LOW, _HIDDEN)


def wrapped_since(owner: nn.Module) -> LabError:
    """The error for a module around whose forward pass something was put after its softmax was replaced."""
    return LabError(
        f"something was put around the forward pass of {type(owner).__name__} after its softmax was replaced, and "
        "would be lost: take that off first"
    )


def without_replicas(owner: nn.Module) -> LabError:
    """The error for ``nn.DataParallel``, whose copies of a module would call the forward pass of the module itself."""
    return LabError(
        f"nn.DataParallel cannot copy {type(owner).__name__} under a replaced softmax, since the copies would compute "
        "with the weights of the original: use DistributedDataParallel, one process for each GPU (torchrun)"
    )


def hides_later(mask: Tensor, queries: int) -> bool:
    """Tells if a mask written out hides all later tokens; padding that leaves the first token alone tells nothing."""
    if queries == 1 or mask.shape[-2:] != (queries, queries):
        return False
    return not bool(mask.triu(1).any()) and bool(mask[..., -1, 1:].any())


def _repeated(x_BGMD: Tensor, heads: int) -> Tensor:
    """Keys or values of groups of heads, repeated for each head of a group."""
    groups = x_BGMD.shape[1]
    return x_BGMD if groups == heads else x_BGMD.repeat_interleave(heads // groups, dim=1)


def replaced_in(model: nn.Module) -> list[ReplacedSoftmax]:
    """The replaced softmaxes that a model asks, from the first to the last."""
    return [module for module in model.modules() if isinstance(module, ReplacedSoftmax) and module.in_use]
