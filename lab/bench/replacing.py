"""Cost of a softmax of the lab in models of other libraries, compared with their own attention."""

from __future__ import annotations

import copy
import time
from typing import Any

import timm
import torch
from torch import nn

from lab.bench.cases import VIT, Case
from lab.bench.softmaxes import softmax_of
from lab.bench.timing import Step, timed_rounds, warm_up
from lab.models.replace import replace_softmax

# Length of a text, and size of the vocabulary; the GPT-2 has 6 layers of width 384.
_TOKENS, _WORDS = 256, 1000


def cost_of_replacing(case: Case) -> list[float]:
    """Time of a step (forward, backward) under the case's softmax over that with the model's own attention, per round.

    It is CPU time of this process, so that other work on the machine adds nothing; on a GPU, wall-clock time. A round
    runs both steps, and each of them comes first in every second round.
    """
    own, x = _made(case)
    steps = [_step(model, x) for model in (own, replace_softmax(copy.deepcopy(own), softmax_of(case.softmax)))]
    warm_up(steps, 2, case.device)
    clock = time.process_time if case.device == "cpu" else time.perf_counter
    minimum = 3 if case.quick else 21
    before, after = timed_rounds(steps, case.seconds, minimum, case.device, alternate=True, clock=clock)
    return [b / a for a, b in zip(before, after, strict=True)]


def _made(case: Case) -> tuple[nn.Module, torch.Tensor]:
    if case.quantity == VIT:
        vit = timm.create_model("vit_tiny_patch16_224")
        return vit.to(case.device), torch.randn(case.batch, 3, 224, 224, device=case.device)
    import transformers

    config = transformers.GPT2Config(
        vocab_size=_WORDS, n_embd=384, n_layer=6, n_head=6, n_positions=_TOKENS, use_cache=False, attn_pdrop=0.0
    )
    config.bos_token_id = config.eos_token_id = 0
    tokens = torch.randint(_WORDS, (case.batch, _TOKENS), device=case.device)
    gpt2: Any = transformers.GPT2Model(config)
    return gpt2.to(case.device), tokens


def _step(model: nn.Module, x: torch.Tensor) -> Step:
    model.train()

    def step() -> None:
        out: Any = model(x)
        (out if isinstance(out, torch.Tensor) else out[0]).square().mean().backward()
        model.zero_grad(set_to_none=True)

    return step
