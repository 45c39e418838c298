"""Causal models of Hugging Face ``transformers`` that answer problems: new ones, and pretrained ones to fine-tune."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from lab.console import first_line
from lab.datasets.loading import IGNORED
from lab.datasets.sizes import Size
from lab.datasets.text.library import hub_name_or_folder, library
from lab.models.language import CausalLanguageModel, Dropout
from lab.models.observable import Observable
from lab.models.replace import replace_softmax
from lab.models.softmaxes import RuleFactory, SoftmaxFactory

# Shapes: B problems, N tokens of the longest problem, M tokens of the longest answer, V of the vocabulary, W width.


class Answering(Observable):
    """A causal model that predicts the next token at given places only: those before each token of an answer.

    Attributes:
        model: the model of ``transformers``, with its language-model head.
        num_classes: size of the data's vocabulary; further tokens of the model are never an answer.
        longest: tokens of the longest problem, its answer included.
    """

    answer_token = -1
    model: Any
    num_classes: int
    longest: int

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:
        """(tokens [B, N], places [B, M]) -> logits [B, M, num_classes] of the token after each place."""
        tokens_BN, places_BM = x
        states_BNW = self.model.base_model(tokens_BN).last_hidden_state
        asked_BMW = torch.take_along_dim(states_BNW, places_BM.unsqueeze(-1), 1)
        # With a large vocabulary the logits take most of the memory, and the tokens of questions need none.
        return self.model.get_output_embeddings()(asked_BMW)[..., : self.num_classes]

    @torch.no_grad()
    def solves(self, x: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        """Tells if greedy decoding gives the whole answer, and then ends: bool [B].

        The problems are decoded as one batch, with the model's key-value cache, up to the length of the longest answer;
        a batch that would not fit into the context is split. Decoding of a problem stops at its first wrong token,
        after which it cannot become right.

        Args:
            x: tokens [B, N], where those of the answer are not read, and places [B, M]; the first place of a row is the
                last token of its question.
            y: tokens of the answers [B, M], then ``IGNORED``.
        """
        from transformers import StoppingCriteria, StoppingCriteriaList

        tokens_BN, places_BM = x
        length_B = places_BM[:, 0] + 1
        longest, answer = int(length_B.max()), int((y != IGNORED).sum(1).max())
        if len(y) > 1 and longest + answer > self.longest:
            solved_B = torch.empty(len(y), dtype=torch.bool, device=y.device)
            # A long question may meet another one's long answer: split by length, since each problem by itself fits.
            for part in length_B.argsort().chunk(2):
                solved_B[part] = self.solves((tokens_BN[part], places_BM[part]), y[part])
            return solved_B
        # Questions are aligned at their ends: the padding before shorter ones is masked.
        from_BP = torch.arange(longest, device=length_B.device) - (longest - length_B).unsqueeze(1)
        prompts_BP = tokens_BN.gather(1, from_BP.clamp_min(0))

        # True from the last token of each answer on.
        over_BM = torch.nn.functional.pad(y[:, 1:] == IGNORED, (0, 1), value=True)

        class Decided(StoppingCriteria):
            """Ends a problem that has gone wrong, or come to the end of its answer."""

            def __call__(self, input_ids: Tensor, scores: Tensor, **others: Any) -> Tensor:  # type: ignore[override]
                last = input_ids.shape[1] - longest - 1
                return over_BM[:, last] | (input_ids[:, -1] != y[:, last])

        # A model may have more tokens than the data. They are never an answer in training, so not here either.
        beyond = list(range(self.num_classes, self.model.get_output_embeddings().weight.shape[0])) or None
        decoded = self.model.generate(
            prompts_BP,
            attention_mask=(from_BP >= 0).long(),
            max_new_tokens=answer,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
            suppress_tokens=beyond,
            stopping_criteria=StoppingCriteriaList([Decided()]),
        )
        # Decoding may have stopped before the longest answer is complete: the rest stays IGNORED.
        said_BM = torch.full_like(y, IGNORED)
        said_BM[:, : decoded.shape[1] - longest] = decoded[:, longest:]
        return ((said_BM == y) | (y == IGNORED)).all(1)


class AnsweringModel(Answering, CausalLanguageModel):  # type: ignore[misc]  # its input has places, too
    """A decoder with random weights: Llama or GPT-2.

    Args:
        num_classes: size of the vocabulary.
        answer_context: tokens of the longest problem.
        architecture: ``llama`` (rotary positions, which go beyond those trained on) or ``gpt2`` (learned ones).
        layers, heads, width: of the decoder; the heads must divide the width.
        hidden: hidden units of an MLP; None is four times the width.
        dropout: as in :class:`lab.models.language.CausalLanguageModel`.
        softmax: makes the rule and the normaliser of a layer; None is plain softmax.
    """

    def __init__(
        self,
        num_classes: int = 261,
        answer_context: int = 2048,
        architecture: Literal["gpt2", "llama"] = "llama",
        layers: Size = 4,
        heads: Size = 4,
        width: Size = 128,
        hidden: Size | None = None,
        dropout: Dropout = 0.0,
        softmax: SoftmaxFactory | RuleFactory | None = None,
    ) -> None:
        super().__init__(num_classes, answer_context, architecture, layers, heads, width, hidden, dropout, softmax)
        self.num_classes = num_classes
        self.longest = answer_context


class PretrainedAnsweringModel(Answering):
    """A pretrained model whose weights are all trained further.

    Weights are read from safetensors alone, in float32, and no code that comes with them is run.

    Args:
        pretrained: name of a causal model on the Hugging Face Hub, ``google/gemma-2b``, or a folder that holds one.
        num_classes: size of the data's vocabulary.
        answer_context: tokens of the longest problem.
        checkpointing: recompute activations in the backward pass, which takes less memory and more time.
        softmax: makes the rule and the normaliser of a layer; None is plain softmax, at the model's own temperature.

    Raises:
        ValueError: if ``transformers`` is not installed, there is no such model, its vocabulary or context is smaller
            than the data needs, or it changes the logits of its head (scales or caps them).
        LabError: if its softmax cannot be replaced.
    """

    def __init__(
        self,
        pretrained: Annotated[str, Field(min_length=1)],
        num_classes: int,
        answer_context: int = 2048,
        checkpointing: bool = False,
        softmax: SoftmaxFactory | RuleFactory | None = None,
    ) -> None:
        super().__init__()
        transformers = library("transformers")
        try:
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                hub_name_or_folder(pretrained), use_safetensors=True, trust_remote_code=False, dtype=torch.float32
            )
        except Exception as error:  # of many libraries: offline, no such name, damaged weights, another architecture
            raise ValueError(f"model.pretrained={pretrained} cannot be read: {first_line(error)}") from error
        config = model.config
        if num_classes > config.vocab_size:
            raise ValueError(
                f"model.pretrained={pretrained} knows {config.vocab_size:,} tokens, and the data has {num_classes:,}: "
                "take its own tokeniser, data/tokenizer=pretrained"
            )
        if answer_context > getattr(config, "max_position_embeddings", answer_context):
            raise ValueError(
                f"model.pretrained={pretrained} takes {config.max_position_embeddings:,} tokens: lower "
                f"data.longest={answer_context}"
            )
        config.use_cache = False
        # The model's own settings may hold penalties or beams, and decoding has to be greedy.
        model.generation_config = transformers.GenerationConfig()
        self.num_classes = num_classes
        self.longest = answer_context
        self.model = model
        self._check_head(pretrained)
        if checkpointing:
            # Before transformers 5.23 it has the second name, which is going to be removed.
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        replace_softmax(model, softmax or SoftmaxFactory())

    @torch.no_grad()
    def _check_head(self, pretrained: str) -> None:
        """Raises ValueError if logits are not those of the head: some models scale or cap them."""
        training: nn.Module = self.model.eval()
        tokens_BN = torch.arange(4).remainder(self.num_classes).unsqueeze(0)
        own = training(tokens_BN).logits[..., : self.num_classes]
        if not torch.allclose(self((tokens_BN, torch.arange(4).unsqueeze(0))), own, rtol=1e-4, atol=1e-4):
            raise ValueError(f"model.pretrained={pretrained} changes its logits after its head: take another model")
        training.train()
