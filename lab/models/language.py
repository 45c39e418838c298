"""Language models of Hugging Face ``transformers``, with random weights, under any softmax of the lab.

Their attention is the library's own except for the softmax (:mod:`lab.models.replace`). ``transformers`` comes with the
extra ``language`` and is imported only where a model is made.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from lab.datasets.sizes import Size
from lab.datasets.text.library import library
from lab.datasets.text.tokens import END, START
from lab.models.observable import Observable
from lab.models.replace import replace_softmax
from lab.models.softmaxes import RuleFactory, SoftmaxFactory

Dropout = Annotated[float, Field(ge=0, lt=1)]


class LanguageModel(Observable):
    """A model of ``transformers`` with random weights, under a softmax of the lab.

    Args:
        kind: the library's ``AutoModelFor<kind>`` makes the model.
        architecture: the library's name for it, as in ``roberta``.
        options: of the architecture's config.
        softmax: makes the rule and the normaliser of a layer; None is plain softmax.
        end_token: number of the token that ends a document, where it is not that of the lab's own tokenisers. It also
            begins one then, as in GPT-2.

    Raises:
        ValueError: if ``transformers`` is not installed, or the heads do not divide the width, or the dimension
            of Llama's heads is odd.
    """

    def __init__(
        self,
        kind: str,
        architecture: str,
        options: dict[str, Any],
        softmax: SoftmaxFactory | RuleFactory | None,
        end_token: int | None = None,
    ) -> None:
        super().__init__()
        transformers = library("transformers")
        width, heads = options["hidden_size"], options["num_attention_heads"]
        if width % heads:
            raise ValueError(f"model.heads={heads} does not divide model.width={width}")
        if architecture == "llama" and width // heads % 2:
            raise ValueError(
                f"model.width={width} over model.heads={heads} is odd, but rotary positions need pairs of dimensions"
            )
        # Packed blocks have no padding: given a number for it, the models would search for it at every step.
        start, end = (START, END) if end_token is None else (end_token, end_token)
        config = transformers.AutoConfig.for_model(
            architecture, use_cache=False, pad_token_id=None, bos_token_id=start, eos_token_id=end, **options
        )
        model: nn.Module = getattr(transformers, f"AutoModelFor{kind}").from_config(config)
        self.model = replace_softmax(model, softmax or SoftmaxFactory())


class MaskedLanguageModel(LanguageModel):
    """RoBERTa, which predicts the original tokens where some are masked.

    Source: Eureka-moments in Transformers, A.18 (12 layers, 12 heads); Liu et al. 2019: width 768, 3,072 hidden
    units, GELU, dropout 0.1, weights N(0, 0.02).

    Args:
        num_classes: size of the vocabulary.
        masked_context: tokens of a block.
        layers, heads, width: of the encoder; the heads must divide the width.
        hidden: hidden units of an MLP; None is four times the width.
        dropout: of the hidden states and of the attention weights.
        softmax: makes the rule and the normaliser of a layer; None is plain softmax.
        end_token: as in :class:`LanguageModel`.
    """

    def __init__(
        self,
        num_classes: int = 8192,
        masked_context: int = 128,
        layers: Size = 12,
        heads: Size = 12,
        width: Size = 768,
        hidden: Size | None = None,
        dropout: Dropout = 0.1,
        softmax: SoftmaxFactory | RuleFactory | None = None,
        end_token: int | None = None,
    ) -> None:
        options = {
            "vocab_size": num_classes,
            "max_position_embeddings": masked_context,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "hidden_size": width,
            "intermediate_size": hidden or 4 * width,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
            "layer_norm_eps": 1e-5,
            "type_vocab_size": 1,
        }
        super().__init__("MaskedLM", "roberta", options, softmax, end_token)

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        """(tokens [B, N], places [B, M]) -> logits [B, M, num_classes] at these places."""
        tokens, places = x
        model: Any = self.model
        # By default RoBERTa counts positions from the padding token's number + 1 on.
        positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        states = model.roberta(tokens, position_ids=positions).last_hidden_state
        # Logits at the asked places only: the head is a third of the work, and 85 % of the tokens are not asked for.
        return model.lm_head(torch.take_along_dim(states, places.unsqueeze(-1), 1))


class CausalLanguageModel(LanguageModel):
    """GPT-2 or Llama, which predict from each token the next one.

    Args:
        num_classes: size of the vocabulary.
        causal_context: tokens of a block.
        architecture: ``gpt2`` (learned positions, layer norm, GELU) or ``llama`` (rotary ones, RMS norm, gated SiLU).
        layers, heads, width: of the decoder; the heads must divide the width.
        hidden: hidden units of an MLP; None is four times the width.
        dropout: of GPT-2's hidden states and attention weights; of Llama's attention weights.
        softmax: makes the rule and the normaliser of a layer; None is plain softmax.
        end_token: as in :class:`LanguageModel`.
    """

    answer_token = -1

    def __init__(
        self,
        num_classes: int = 8192,
        causal_context: int = 128,
        architecture: Literal["gpt2", "llama"] = "gpt2",
        layers: Size = 12,
        heads: Size = 12,
        width: Size = 768,
        hidden: Size | None = None,
        dropout: Dropout = 0.0,
        softmax: SoftmaxFactory | RuleFactory | None = None,
        end_token: int | None = None,
    ) -> None:
        hidden = hidden or 4 * width
        own: dict[str, dict[str, Any]] = {
            "gpt2": {
                "n_inner": hidden,
                # GPT-2's own GELU ("gelu_new") as one kernel: twice as fast, the same but for rounding.
                "activation_function": "gelu_pytorch_tanh",
                "resid_pdrop": dropout,
                "embd_pdrop": dropout,
                "attn_pdrop": dropout,
            },
            "llama": {"intermediate_size": hidden, "attention_dropout": dropout},
        }
        options = {
            "vocab_size": num_classes,
            "max_position_embeddings": causal_context,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "hidden_size": width,
            **own[architecture],
        }
        super().__init__("CausalLM", architecture, options, softmax, end_token)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [B, N] -> logits [B, N, num_classes] of the token after each."""
        model: Any = self.model
        return model(x).logits
