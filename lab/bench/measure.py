"""The measurements: every group builds what it times from the lab's own parts.

Shapes: B batch, H heads, N tokens, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import lab.attention.layers
from lab.attention.functional import attend
from lab.attention.normalisers.local import Local
from lab.attention.rules.fixed import Fixed
from lab.bench.cases import HEAD_DIM, HEADS, Case, Row
from lab.bench.gathering import time_of_gathering
from lab.bench.looking import cost_of_looking, time_of_probes
from lab.bench.replacing import cost_of_replacing
from lab.bench.runs import time_of_runs
from lab.bench.softmaxes import check_softmax, softmax_of
from lab.bench.timing import MIB, Step, matrix_product, memory_now, quartiles, timed_rounds, warm_up
from lab.datasets.drawn import DrawnDigits, DrawnGarments
from lab.datasets.loading import Batch
from lab.datasets.reasoning import ReasoningData
from lab.datasets.scenes import compose
from lab.datasets.tasks.main import MainTask
from lab.datasets.vision import VisionData
from lab.models.compact_vit import CompactViT
from lab.models.reasoner import Reasoner
from lab.models.softmaxes import make_softmaxes
from lab.runs.peak import forget_peak, peak_memory
from lab.training.machine import flushed_denormals, tune_compiler
from lab.training.module import TwoStepModule
from lab.training.onednn import use_onednn
from lab.training.optim import OptimConfig
from lab.training.seeds.module import OneSeed, Seed, SeedsModule

IMAGE_SIZE, CLASSES = 56, 10
WARM_UP_ROUNDS = 2
SEEDS = 5  # of Figure 8
MANY = (SEEDS, 10)  # numbers of seeds trained together in one step; 10 of Table 1


def measure(case: Case) -> list[Row]:
    """The rows of a case, measured in this process.

    Raises:
        LabError: for a softmax that does not exist.
    """
    torch.manual_seed(0)
    torch.set_num_threads(case.threads)
    tune_compiler(on_gpu=case.device == "cuda")
    groups = {
        "compose": _compose,
        "train": _train,
        "ratio": _ratio,
        "attention": _attention,
        "replace": _replace,
        "seeds": _seeds,
        "diagnostics": _diagnostics,
        "probes": _probes,
        "gather": _gather,
        "windows": _windows,
    }
    if case.softmax:
        check_softmax(case.softmax)  # here, or a group would count what its first trial loads as memory of its own
    with _path(case.path), flushed_denormals():
        return groups[case.group](case)


def _compose(case: Case) -> list[Row]:
    before = memory_now(case.device)
    # All 60,000 images of each source: a small bank would fit into the processor's cache and seem faster.
    sizes = {"train_size": 1000, "test_size": 10} if case.quick else {}
    sources = {"digits": DrawnDigits(**sizes), "garments": DrawnGarments(**sizes)}
    data = VisionData(MainTask(), sources, batch_size=case.batch)
    pixels = data.bank("train").pixels.to(case.device)
    if case.quantity == "composition":
        draws = move_data_to_device(data.draw_train(0, 0), case.device)
        step: Step = partial(compose, pixels, draws["images"], draws["colors"])
    else:
        numbers = iter(range(2**62))

        def step() -> Batch:
            return data.composed(move_data_to_device(data.draw_train(0, next(numbers)), case.device))

    (times,), memory = _run(case, [step], before, minimum=5)
    return [_row(case, case.quantity, "samples/s", [case.batch / t for t in times], memory)]


def _train(case: Case) -> list[Row]:
    before = memory_now(case.device)
    step = training_step(case, case.softmax)
    # Memory is measured before the matrices of the product exist.
    _, memory = _run(replace(case, seconds=0.0), [step], before, minimum=1)
    # Step and product take turns, since the speed of a shared machine changes from one second to the next.
    multiply, flops = matrix_product(getattr(torch, case.precision), case.device)
    (times, products), _ = _run(case, [step, multiply], before, minimum=5)
    share = linear_flops() * case.batch / flops
    shares = [100 * share * product / time for time, product in zip(times, products, strict=True)]
    return [
        _row(case, "training", "images/s", [case.batch / t for t in times], memory),
        _row(case, "its linear layers over the machine's matrix product", "%", shares, memory),
    ]


def linear_flops() -> int:
    """Floating-point operations of the compact ViT's linear layers for one image, forward and backward.

    Attention's own products, a fifth more, are not counted.
    """
    with FlopCounterMode(display=False) as counter:
        CompactViT(softmax=Fixed)(torch.zeros(1, 3, IMAGE_SIZE, IMAGE_SIZE))
    found = counter.get_flop_counts()["Global"]
    # Times 3: for each product, backward needs one for the gradient of the weights and one for that of the input.
    return 3 * sum(found.get(name, 0) for name in (torch.ops.aten.mm, torch.ops.aten.addmm))


def _ratio(case: Case) -> list[Row]:
    before = memory_now(case.device)
    steps = [training_step(case, softmax) for softmax in (case.softmax, "softmax")]
    (ours, plain), memory = _run(case, steps, before, minimum=11, alternate=True)
    ratios = [a / b for a, b in zip(ours, plain, strict=True)]
    return [_row(case, "step time / softmax's", "x", ratios, memory)]


def training_step(case: Case, softmax: str, model: CompactViT | None = None) -> Step:
    """Forward, loss, backward and AdamW step of the compact ViT, as the lab's module does them.

    The batch is noise of the pictures' shape, made once: the time of composing has its own row.
    """
    model = CompactViT(softmax=softmax_of(softmax)) if model is None else model
    optim = OptimConfig(lr=5e-4, weight_decay=0.05, label_smoothing=0.1)
    module = TwoStepModule(model, optim, num_classes=CLASSES).to(case.device).train()
    optimizer = optim.optimizer(optim.parameter_groups(model), samples_per_step=1)
    use_onednn(module.model)
    if case.mode == "compile":
        module.model.compile()
    batch: Batch = {
        "x": torch.randn(case.batch, 3, IMAGE_SIZE, IMAGE_SIZE, device=case.device),
        "y": torch.randint(CLASSES, (case.batch,), device=case.device),
        "latents": {},
    }

    def step() -> None:
        with torch.autocast(case.device, torch.bfloat16, enabled=case.precision == "bfloat16"):
            loss = module.training_step(batch, 0)
        # Here and not after the step, so that diagnostics can still read the gradients then (lab.bench.looking).
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def _attention(case: Case) -> list[Row]:
    before = memory_now(case.device)
    shape = (case.batch, HEADS, case.tokens, HEAD_DIM)
    # The type that a layer under autocast gives to attention.
    dtype = torch.bfloat16 if case.precision == "bfloat16" else torch.float32
    q_BHND, k_BHND, v_BHND = (torch.randn(shape, device=case.device, dtype=dtype, requires_grad=True) for _ in range(3))
    rule, normaliser = next(make_softmaxes(softmax_of(case.softmax), HEADS, HEAD_DIM, trained_length=case.tokens))
    parts = torch.nn.ModuleList([rule, normaliser]).to(case.device).train()
    inputs = [q_BHND, k_BHND, v_BHND, *(p for p in parts.parameters() if p.requires_grad)]
    ahead_BHND = torch.randn(shape, device=case.device, dtype=dtype)
    result: list[Tensor] = []

    def forward() -> None:
        result[:] = [lab.attention.layers.attend(q_BHND, k_BHND, v_BHND, rule, None, normaliser)]

    def backward() -> None:
        # A class of the user's own may have a parameter that it does not read.
        torch.autograd.grad(result, inputs, [ahead_BHND], allow_unused=True)

    times, memory = _run(case, [forward, backward], before, minimum=5)
    rows = zip(("forward", "backward"), times, strict=True)
    return [_row(case, quantity, "ms", [1000 * t for t in seconds], memory) for quantity, seconds in rows]


def _windows(case: Case) -> list[Row]:
    """Time of FlexAttention over that of the fused kernel with a mask, per round; on a CPU both are that kernel."""
    before = memory_now(case.device)
    shape = (case.batch, HEADS, case.tokens, HEAD_DIM)
    dtype = torch.bfloat16 if case.precision == "bfloat16" else torch.float32
    inputs = [torch.randn(shape, device=case.device, dtype=dtype, requires_grad=True) for _ in range(3)]
    q_BHND, k_BHND, v_BHND = inputs
    ahead_BHND = torch.randn(shape, device=case.device, dtype=dtype)
    rule = Fixed(HEADS, HEAD_DIM).to(case.device)

    def step(local: Local) -> None:
        torch.autograd.grad(attend(q_BHND, k_BHND, v_BHND, rule, normaliser=local), inputs, ahead_BHND)

    steps = [partial(step, Local(HEADS, HEAD_DIM, flex=flex)) for flex in (True, False)]
    (flex, mask), memory = _run(case, steps, before, minimum=11, alternate=True)
    ratios = [a / b for a, b in zip(flex, mask, strict=True)]
    return [_row(case, "FlexAttention / mask", "x", ratios, memory)]


def _replace(case: Case) -> list[Row]:
    return _rows(case, memory_now(case.device), lambda: {case.quantity: cost_of_replacing(case)}, "x")


def _seeds(case: Case) -> list[Row]:
    """Full-batch reasoning steps, or epochs of real runs: those of one seed and of several together take turns."""
    before = memory_now(case.device)
    if case.quantity == "runs":
        return _seed_runs(case, before)
    many = MANY[:1] if case.quick else MANY
    steps = [reasoning_step(case, seeds) for seeds in (1, *many)]
    (one, *together), memory = _run(case, steps, before, 11, alternate=True)
    rows = [_row(case, "step of one seed", "ms", [1000 * t for t in one], memory)]
    for seeds, times in zip(many, together, strict=True):
        ratios = [b / (seeds * a) for a, b in zip(one, times, strict=True)]
        rows += [
            _row(case, f"step of {seeds} seeds together", "ms", [1000 * t for t in times], memory),
            _row(case, f"{seeds} steps together / {seeds} steps", "x", ratios, memory),
            _row(case, f"{seeds} steps together / one", "x", [seeds * ratio for ratio in ratios], memory),
        ]
    return rows


def _seed_runs(case: Case, before: int) -> list[Row]:
    forget_peak(case.device)
    one, many = time_of_runs(case, SEEDS)
    memory = _memory(case, before)
    ratios = [b / (SEEDS * a) for a, b in zip(one, many, strict=True)]
    return [
        _row(case, "epoch of one seed's run", "ms", [1000 * t for t in one], memory),
        _row(case, f"epoch of a run of {SEEDS} seeds", "ms", [1000 * t for t in many], memory),
        _row(case, f"a run of {SEEDS} seeds / {SEEDS} runs", "x", ratios, memory),
    ]


def _diagnostics(case: Case) -> list[Row]:
    before = memory_now(case.device)
    model = CompactViT(softmax=softmax_of(case.softmax))
    (times,), _ = _run(case, [training_step(case, case.softmax, model)], before, minimum=5)
    return _rows(case, before, partial(cost_of_looking, case, times, model), "x", "x", "x")


def _probes(case: Case) -> list[Row]:
    return _rows(case, memory_now(case.device), partial(time_of_probes, case), "s", "s", "x", "points")


def _gather(case: Case) -> list[Row]:
    return _rows(case, memory_now(case.device), partial(time_of_gathering, case), "s", "s")


def reasoning_step(case: Case, seeds: int) -> Step:
    """A full-batch training step of the reasoner; several seeds are trained together as ``seeds=`` does it.

    Metrics are computed every tenth step, as often as ``experiment=reasoning`` validates.
    """
    softmax = softmax_of(case.softmax, "experiment=reasoning")
    optim = OptimConfig(lr=5e-3, weight_decay=1.0, decay_matrices_only=False, options={"betas": (0.9, 0.98)})
    own: list[Seed] = []
    batch: dict[int, Any] = {}
    for number in range(seeds):
        torch.manual_seed(number)
        data = ReasoningData(seed=number)
        module = OneSeed(Reasoner(layer_norm=True, softmax=softmax), optim, num_classes=11).to(case.device).train()
        own.append(Seed(number, module, data))
        batch[number] = move_data_to_device(data.batch("train"), case.device)
    epochs: Any = _Epochs()
    for seed in own:
        seed.module.trainer = epochs
    if seeds == 1:
        single = own[0].module
        groups = optim.parameter_groups(single.model)
        if case.mode == "compile":
            single.model.compile()
        loss_of = partial(single.training_step, batch[0], 0)
    else:
        many = SeedsModule(own, compile=case.mode == "compile").to(case.device)
        many.bind()
        groups = many.stack.parameter_groups(optim.parameter_groups(own[0].module.model))
        loss_of = partial(many.training_step, batch, 0)
    optimizer = optim.optimizer(groups, 1)

    def step() -> None:
        loss_of().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        epochs.current_epoch += 1

    return step


class _Epochs:
    """Stands in for a trainer: holds what a module reads of it to decide whether to report this epoch's metrics."""

    check_val_every_n_epoch = 10
    max_epochs = 10_000
    current_epoch = 0


def _run(
    case: Case, steps: Sequence[Step], before: int, minimum: int, alternate: bool = False
) -> tuple[list[list[float]], tuple[int, int]]:
    """Warms up, then times rounds; returns their times and :func:`_memory`."""
    warm_up(steps, WARM_UP_ROUNDS, case.device)
    forget_peak(case.device)
    times = timed_rounds(steps, case.seconds, 3 if case.quick else minimum, case.device, alternate)
    return times, _memory(case, before)


def _rows(case: Case, before: int, find: Callable[[], Mapping[str, list[float]]], *units: str) -> list[Row]:
    """Rows of what ``find`` measures: quantity -> values, each quantity in its unit; all with :func:`_memory`."""
    forget_peak(case.device)
    found = find()
    memory = _memory(case, before)
    return [_row(case, name, unit, values, memory) for (name, values), unit in zip(found.items(), units, strict=True)]


def _memory(case: Case, before: int) -> tuple[int, int]:
    """Peak memory and its growth over ``before``, in bytes."""
    peak = peak_memory(case.device)
    return peak, max(0, peak - before)


def _row(case: Case, quantity: str, unit: str, values: Sequence[float], memory: tuple[int, int]) -> Row:
    lower, median, upper = quartiles(values)
    peak, growth = (round(n / MIB, 1) for n in memory)
    return Row(
        **case.setting(),
        quantity=quantity or case.quantity,
        unit=unit,
        median=median,
        lower_quartile=lower,
        upper_quartile=upper,
        rounds=len(values),
        peak_mib=peak,
        growth_mib=growth,
    )


@contextmanager
def _path(path: str) -> Iterator[None]:
    """Sends every attention layer of this process down the fused or the explicit path.

    The lab takes the explicit path only to record attention, so timing a training step on it needs this detour.
    """
    fused = lab.attention.layers.attend

    def explicit(*given: Any, **named: Any) -> Tensor:
        return lab.attention.layers.attend_explicit(*given, **named).z

    if path == "explicit":
        lab.attention.layers.attend = explicit
    try:
        yield
    finally:
        lab.attention.layers.attend = fused
