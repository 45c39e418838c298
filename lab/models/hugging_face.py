"""Models of Hugging Face ``transformers``: one attention function, registered with the library, reaches them all.

Imported only if ``transformers`` is. Its models look up an attention function by the name in their config.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from lab.console import LabError
from lab.models.replaced_softmax import NAME, ReplacedSoftmax, hides_later

_IMPLEMENTATION = "eureka_lab"
# For models that transformers runs with masks written out only: their modules do not tell rightly whether they are
# causal, so a mask may not be left out for it.
_WRITTEN_OUT = "eureka_lab_with_masks_written_out"
_OURS = (_IMPLEMENTATION, _WRITTEN_OUT)
# Arguments of attention by which some models change more than the temperature, and why each is refused.
_REASONS = {
    "softcap": "caps its scores by a tanh (softcap), which the rules do not know",
    "s_aux": "has attention sinks of its own beside its keys (s_aux)",
    "sinks": "has attention sinks of its own beside its keys",
    "indices": "picks the keys of each query by an index of its own, which the softmax does not read",
    "block_indices": "picks the keys of each query by an index of its own, which the softmax does not read",
    "cache": "keeps keys in a paged cache, which the softmax does not read",
}
# Those that are seen in the code of a module's forward: the module is refused before it is called.
_SEEN = ("s_aux", "sinks", "indices", "block_indices")
_SOFTCAPS = ("attn_logit_softcapping", "attn_logit_softcap")


class OfHuggingFace(ReplacedSoftmax):
    """The softmax of a module that asks ``transformers`` for an attention function by the name in its config.

    Models may share a config: the lab's name stays there until the last softmax that needs it is uninstalled.
    """

    _installed: ClassVar[WeakSet[OfHuggingFace]] = WeakSet()
    # Whether a module's model runs under torch's fused attention, where the model was seen.
    _fused: ClassVar[WeakKeyDictionary[nn.Module, bool]] = WeakKeyDictionary()
    # Whether a mask has shown if the module is causal.
    seen_a_mask = False

    @classmethod
    def found_in(cls, model: nn.Module) -> list[nn.Module]:
        for part in model.modules():  # inner models come after those that hold them
            if isinstance(part, PreTrainedModel):
                cls._fused.update(dict.fromkeys(part.modules(), part._supports_sdpa))
        found = [module for module in model.modules() if "ALL_ATTENTION_FUNCTIONS" in _names(module)]
        for module in found:
            capped = any(getattr(module, name, None) is not None for name in _SOFTCAPS)
            for name in (*_SEEN, *(("softcap",) if capped else ())):
                if name in _names(module):
                    raise refusal(module, name)
        return found

    def state_before(self) -> str | None:
        now = self._config._attn_implementation
        if now not in _OURS:
            return now
        # Also of a model that is gone, or of the original of a copied config.
        return next((one.before for one in self._sharing()), "sdpa" if self._is_fused else "eager")

    def install(self, before: Any) -> None:
        super().install(before)
        self._installed.add(self)
        leaves_masks_out = all(one._is_fused and not one._shares_keys for one in self._sharing())
        self._config._attn_implementation = _IMPLEMENTATION if leaves_masks_out else _WRITTEN_OUT
        self._hook = self.owner.register_forward_pre_hook(_check_chosen)

    def uninstall(self) -> None:
        super().uninstall()
        self._hook.remove()
        self._installed.discard(self)
        # An implementation that was chosen since then is kept.
        if not self._sharing() and self._config._attn_implementation in _OURS:
            self._config._attn_implementation = self.before

    def __setstate__(self, state: dict[str, Any]) -> None:
        # A copied or unpickled softmax counts as installed: its config, a copy too, names the lab's attention.
        super().__setstate__(state)
        self._installed.add(self)

    def _sharing(self) -> list[OfHuggingFace]:
        return [one for one in self._installed if one._config is self._config]

    @property
    def _config(self) -> Any:
        return self.owner.config

    @property
    def _is_fused(self) -> bool:
        """True where the module's model runs under torch's fused attention; where it was not seen, its file tells."""
        if self.owner in self._fused:
            return self._fused[self.owner]
        file = type(self.owner).__module__
        classes = [one for one in vars(sys.modules[file]).values() if isinstance(one, type) and one.__module__ == file]
        models: list[Any] = [one for one in classes if issubclass(one, PreTrainedModel)]
        told = [one._supports_sdpa for one in models]
        return bool(told) and all(told)

    @property
    def _shares_keys(self) -> bool:
        """True where layers take the keys of earlier ones (Gemma 4), and may be asked for the last queries alone.

        A mask is cut for these queries with them; one that was left out would count from the first token.
        """
        return bool(getattr(self._config, "num_kv_shared_layers", 0))


def refusal(module: nn.Module, name: str) -> LabError:
    """The error for an attention module that does something to its scores that the lab's rules do not know."""
    return LabError(f"the softmax of {type(module).__name__} cannot be replaced: it {_REASONS[name]}")


def _names(module: nn.Module) -> set[str]:
    """Names that a module's forward uses, those of keyword arguments among them."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    if code is None:
        return set()
    return {*code.co_names, *(name for one in code.co_consts if isinstance(one, tuple) for name in one)}


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    output_attentions: bool = False,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as ``transformers`` calls it: queries, keys and values [B, H, N, D] -> (z [B, N, H, D], None).

    A module without a softmax of the lab comes here if it shares its config with one that has: it keeps its own
    softmax, by the library's fused kernel.
    """
    softmax = getattr(module, NAME, None)
    if softmax is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal=is_causal, **others
        )
    for name in _REASONS:
        # From transformers 5.24 on, a cache that is not paged has the same name.
        if others.get(name) is not None and (name != "cache" or "Paged" in type(others[name]).__name__):
            raise refusal(module, name)
    if output_attentions:
        raise LabError(
            f"{type(module).__name__} is asked for its attention weights: read them with lab.Recorder, or restore its "
            "own softmax"
        )
    if (is_causal and query.shape[2] > 1) or _shows_causal(softmax, attention_mask):
        softmax.mark_causal()
    if others.get("sliding_window") and getattr(softmax.normaliser, "first", 0):
        raise LabError(
            f"{type(module).__name__} has a sliding window of its own, whose cache loses the first tokens, but "
            f"{type(softmax.normaliser).__name__} lets all queries see those: take softmax.normaliser.first=0 (in "
            'Python: normaliser={"first": 0})'
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = query.shape[2] > 1 and attention_mask is None and causal
    z = softmax.of_call(query, key, value, attention_mask, causal, dropout, scaling, others.get("position_bias"))
    return z.transpose(1, 2).contiguous(), None


def _shows_causal(softmax: OfHuggingFace, mask_BHNM: Tensor | None) -> bool:
    """Tells if the first square mask of a module that has its masks written out is causal."""
    known = softmax.is_causal or softmax.seen_a_mask
    if known or softmax._config._attn_implementation != _WRITTEN_OUT or mask_BHNM is None:
        return False
    queries, keys = mask_BHNM.shape[-2:]
    if queries != keys or queries == 1 or mask_BHNM.dtype != torch.bool:
        return False
    is_causal = hides_later(mask_BHNM, queries)
    softmax.seen_a_mask = is_causal or bool(mask_BHNM.triu(1).any())
    return is_causal


def _check_chosen(module: nn.Module, inputs: Any) -> None:
    """Refuses to run a module whose softmax of the lab is left out."""
    config: Any = module.config
    if config._attn_implementation not in _OURS:
        raise LabError(
            f"{type(module).__name__} was told to attend by {config._attn_implementation!r} after its softmax was "
            "replaced, and would use its own: call lab.replace_softmax after set_attn_implementation"
        )


def _whole_mask(*args: Any, **kwargs: Any) -> Tensor | None:
    return sdpa_mask(*args, **{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


for _name, _mask in ((_IMPLEMENTATION, sdpa_mask), (_WRITTEN_OUT, _whole_mask)):
    AttentionInterface.register(_name, _attention)
    # Masks as F.scaled_dot_product_attention takes them: bool, or none where they are causal or hide nothing.
    AttentionMaskInterface.register(_name, _mask)
