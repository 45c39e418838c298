"""Linear probes, all at once: batched logistic regression of many representations on many targets.

Shapes: P probed representations, n scenes, d features, K classes of all targets side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lab.attention.precision import at_least_float32, in_float64

# Scenes times features times representations of one batched solve: 512 MiB in float32.
_BATCH_ELEMENTS = 2**27


@dataclass(frozen=True)
class Targets:
    """Targets of probes: integer labels of several names, as one block of columns.

    Attributes:
        names: of the targets.
        labels: [T, n] int64, a row a target.
        classes: number of classes of each.
    """

    names: tuple[str, ...]
    labels: Tensor
    classes: tuple[int, ...]

    @classmethod
    def of(cls, labels: Mapping[str, Tensor]) -> Targets:
        """Targets of labels [n] by name; a label that is the same in all scenes is left out, as it says nothing.

        Raises:
            ValueError: if labels are not tensors [n] of the same scenes, hold NaN, or all say nothing.
        """
        if not isinstance(labels, Mapping):
            raise ValueError(f"labels are a dict, name -> tensor [scenes], got {_described(labels)}")
        for name, values in labels.items():
            if not isinstance(values, Tensor) or values.dim() != 1 or not len(values):
                raise ValueError(f"labels are tensors [scenes], and {name} is {_described(values)}")
            if values.isnan().any():
                raise ValueError(f"label {name} holds NaN: leave out the scenes that have none")
        sizes = {name: len(values) for name, values in labels.items()}
        if len(set(sizes.values())) > 1:
            raise ValueError(f"all labels are of the same scenes, got {sizes}")
        varied = {name: values for name, values in labels.items() if values.min() < values.max()}
        if not varied:
            raise ValueError("there is nothing to probe for: every target is the same in all scenes")
        # Classes are renumbered: the digits 1 and 2 are two classes, not three.
        stacked = torch.stack([values.cpu().unique(return_inverse=True)[1] for values in varied.values()])
        return cls(tuple(varied), stacked, tuple(int(row.max()) + 1 for row in stacked))

    @property
    def slices(self) -> list[slice]:
        """The columns of each target."""
        ends = torch.tensor(self.classes).cumsum(0).tolist()
        return [slice(end - size, end) for end, size in zip(ends, self.classes, strict=True)]

    def one_hot(self, rows: slice) -> Tensor:
        """One-hot labels of the scenes ``rows``, [n, K] float32."""
        parts = [
            torch.nn.functional.one_hot(labels[rows], size)
            for labels, size in zip(self.labels, self.classes, strict=True)
        ]
        return torch.cat(parts, dim=1).float()

    def majority(self, train: slice, held_out: slice) -> list[float]:
        """Held-out accuracy of always answering with the training set's most frequent class."""
        return [float((own[held_out] == own[train].mode().values).float().mean()) for own in self.labels]

    def entropies(self) -> list[float]:
        """Entropy of each target in bits: what a label costs if only the frequencies of classes are known."""
        shares = [own.bincount().double() / len(own) for own in self.labels]
        return [float(torch.special.entr(share).sum()) / math.log(2) for share in shares]


def probe_accuracy(features_PND: Tensor, targets: Targets, held_out_share: float = 0.25, l2: float = 1.0) -> Tensor:
    """Held-out accuracy of a logistic probe for every representation and target, [P, T].

    Fitted on the first scenes, judged on the last; features are standardised by the training part.

    Args:
        features_PND: [P, n, d] representations.
        targets: labels of the same n scenes.
        held_out_share: share of scenes that probes are judged on.
        l2: weight of ||W||^2 / 2 beside the summed log-loss (scikit-learn's 1 / C; 2 / C with two classes, which have
            one column there).

    Raises:
        ValueError: if a part would be empty, or features, targets or numbers are none that a probe could be fitted to.
    """
    _check(features_PND, targets, l2)
    train, held_out = held_out_split(features_PND.shape[1], held_out_share)
    accuracies = []
    for group in _groups(features_PND):
        logits = predict(group, targets, train, held_out, l2)
        accuracies.append(accuracy(logits, targets, held_out))
    return torch.cat(accuracies)


def held_out_split(scenes: int, share: float) -> tuple[slice, slice]:
    """The scenes that a probe is fitted on, and the last ones, which are held out.

    Raises:
        ValueError: if one part would be empty.
    """
    cut = scenes - round(share * scenes)
    if not 0 < cut < scenes:
        raise ValueError(f"{scenes} scenes with a held-out share of {share} leave one part empty")
    return slice(0, cut), slice(cut, scenes)


def _check(features_PND: Tensor, targets: Targets, l2: float) -> None:
    if not isinstance(targets, Targets):
        raise ValueError(
            f"targets are made from labels by name, as Targets.of({{'label': y}}), got {_described(targets)}"
        )
    real = isinstance(features_PND, Tensor) and features_PND.is_floating_point()
    if not real or features_PND.dim() != 3 or not features_PND.numel():
        raise ValueError(
            "features are a tensor of real numbers, [representations, scenes, features], with one or more of each, "
            f"got {_described(features_PND)}"
        )
    if features_PND.shape[1] != targets.labels.shape[1]:
        raise ValueError(f"features are of {features_PND.shape[1]} scenes, but targets of {targets.labels.shape[1]}")
    if not all(math.isfinite(float(end)) for end in features_PND.aminmax()):
        raise ValueError("features hold NaN or infinity: leave out the representations that do")
    if not 0 < l2 < math.inf:
        raise ValueError(f"l2 is a number above 0, got {l2}")


def _described(value: object) -> str:
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


def accuracy(logits_PNK: Tensor, targets: Targets, rows: slice) -> Tensor:
    """Share of right answers, [P, T]."""
    right = [
        (logits_PNK[..., columns].argmax(-1).cpu() == labels[rows]).float().mean(1)
        for columns, labels in zip(targets.slices, targets.labels, strict=True)
    ]
    return torch.stack(right, dim=1)


def code_length(features_PND: Tensor, targets: Targets, portions: Sequence[float], l2: float = 1.0) -> Tensor:
    """Online code-length in bits, [P, T]: what it takes to send the labels to a receiver who has the features.

        L = t_1 log2 C - sum_i log2 p_i(y in (t_i, t_{i+1}]),

    with probe p_i fitted on the first t_i scenes; the last block ends with the last scene. The receiver has all
    features, so that these are standardised over all scenes: over the first two, a feature in which they are alike
    would be huge elsewhere, and a binary label could cost more than twice what it costs without features.

    Source: Voita and Titov 2020; Eureka-moments in Transformers, A.12 (0.1 % to 50 %).

    Raises:
        ValueError: if the portions do not rise within (0, 1), or features, targets or numbers are none that a probe
            could be fitted to.
    """
    _check(features_PND, targets, l2)
    size = features_PND.shape[1]
    if not portions or any(not a < b for a, b in zip([0.0, *portions], [*portions, 1.0], strict=True)):
        raise ValueError(f"portions must rise between 0 and 1, got {list(portions)}")
    # With few scenes, several of the first portions round to the same number of scenes.
    ends = list(dict.fromkeys(max(1, round(portion * size)) for portion in portions))
    bits = []
    for group in _groups(features_PND):
        # In float32, rounding moves probabilities by more than the tolerance, and fits would not end early.
        group = in_float64(group)
        mean_P1D, scale_P1D = _mean_and_scale(group)
        group = (group - mean_P1D) / scale_P1D
        total = torch.tensor([ends[0] * math.log2(c) for c in targets.classes]).repeat(len(group), 1).double()
        for start, stop in zip(ends, [*ends[1:], size], strict=True):
            train, block = slice(0, start), slice(start, stop)
            # A right answer costs bits by how sure the probe is: fits that serve an accuracy are not close enough.
            logits = predict_standardised(
                group[:, train], group[:, block], targets.one_hot(train), targets, l2, iterations=2000, tolerance=1e-6
            )
            for index, columns in enumerate(targets.slices):
                log_p = logits[..., columns].log_softmax(-1).cpu()
                own = targets.labels[index, block].expand(len(group), -1).unsqueeze(-1)
                total[:, index] -= log_p.gather(-1, own).squeeze(-1).sum(1) / math.log(2)
        bits.append(total)
    return torch.cat(bits)


def predict(
    features_PND: Tensor,
    targets: Targets,
    train: slice,
    rows: slice,
    l2: float = 1.0,
    until: tuple[int, float] | None = None,
) -> Tensor:
    """Logits [P, rows, K] of probes fitted on the scenes ``train``, over which features are standardised.

    Args:
        until: largest number of steps, and the tolerance of :func:`fit`; None takes those that serve an accuracy.
    """
    (features,) = at_least_float32(features_PND)
    x, new = features[:, train], features[:, rows]
    # Where features are few for the scenes, the first steps are nearly the whole fit. Elsewhere the last count, too.
    few = 10 * x.shape[2] <= x.shape[1]
    iterations, tolerance = until or ((200, 1e-3) if few else (1000, 1e-5))
    mean, scale = _mean_and_scale(x)
    y = targets.one_hot(train)
    return predict_standardised((x - mean) / scale, (new - mean) / scale, y, targets, l2, iterations, tolerance)


def _mean_and_scale(features_PND: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of each feature, and what its difference from the mean is divided by: its deviation.

    Infinity for a feature that is constant but for rounding: divided by anything less, its rounding would be learnt,
    and would be huge in a scene of another value.
    """
    mean, deviation = features_PND.mean(1, keepdim=True), features_PND.std(1, correction=0, keepdim=True)
    varies = deviation > 1e-6 * features_PND.abs().amax(1, keepdim=True)
    return mean, torch.where(varies, deviation, torch.inf)


def predict_standardised(
    x: Tensor, new: Tensor, y: Tensor, targets: Targets, l2: float, iterations: int, tolerance: float
) -> Tensor:
    """Logits [P, m, K] for ``new`` [P, m, D] of probes fitted on ``x`` [P, n, D] and one-hot labels ``y`` [n, K].

    Where a representation has at least as many features as there are scenes, probes are fitted in the dual: the same
    probes, from the n x n matrix of inner products of scenes.
    """
    if x.shape[-1] < x.shape[1]:
        if tolerance < _OF_FLOAT32:
            x, new = in_float64(x), in_float64(new)
        x, new, y = _with_intercept(x), _with_intercept(new), y.to(x)
        gram = _plus_diagonal(x.mT @ x / 2, l2)
        weights_PKD = fit(
            lambda w: w @ x.mT,
            lambda r: torch.cholesky_solve((r @ x).mT, gram).mT,
            y.mT,
            targets,
            len(x),
            iterations,
            tolerance,
        )
        return new @ weights_PKD.mT
    # An intercept adds a constant to every product.
    products = x @ x.mT + _INTERCEPT**2
    return dual_predict(products, new @ x.mT + _INTERCEPT**2, y, targets, l2, iterations, tolerance)


def dual_predict(
    products_Pnn: Tensor,
    new_Pmn: Tensor,
    y: Tensor,
    targets: Targets,
    l2: float,
    iterations: int,
    tolerance: float,
) -> Tensor:
    """Logits [P, m, K] of probes from inner products alone: of the fitted scenes, and of new with fitted scenes."""
    # Products of many features are large beside l2: in float32 the factorisation would lose it.
    products_Pnn = in_float64(products_Pnn)
    y = y.to(products_Pnn)
    factor = _plus_diagonal(products_Pnn / 2, l2)
    alpha_PKN = fit(
        lambda a: a @ products_Pnn,
        lambda r: torch.cholesky_solve(r.mT, factor).mT,
        y.mT,
        targets,
        len(products_Pnn),
        iterations,
        tolerance,
    )
    return new_Pmn @ alpha_PKN.mT.to(new_Pmn)


# In float32, rounding moves probabilities by up to this in a step: a fit to less would not end early.
_OF_FLOAT32 = 1e-4

# A feature of this size stands for the intercept, so that the penalty on its weight is next to nothing.
_INTERCEPT = 10.0


def _with_intercept(x: Tensor) -> Tensor:
    return torch.cat([x, torch.full_like(x[..., :1], _INTERCEPT)], dim=-1)


def _plus_diagonal(matrix: Tensor, value: float) -> Tensor:
    """Cholesky factor of ``matrix`` with ``value`` added to its diagonal, in place."""
    matrix.diagonal(dim1=-2, dim2=-1).add_(value)
    return torch.linalg.cholesky(matrix)


def fit(
    apply: Callable[[Tensor], Tensor],
    solve: Callable[[Tensor], Tensor],
    y_KN: Tensor,
    targets: Targets,
    size: int,
    iterations: int,
    tolerance: float,
) -> Tensor:
    """Minimises the summed log-loss of all targets plus l2 ||W||^2 / 2, for P representations at once.

    The Hessian of a softmax is at most 1/2, so that each step minimises a quadratic bound exactly (Boehning 1992):

        (X^T X / 2 + l2) W = X^T (F / 2 - (softmax(F) - Y)),   F = X W,

    with one factorisation for all steps and targets. Nesterov's momentum makes the steps few; it is restarted for a
    probe whose step turns back (O'Donoghue and Candes 2015). The fit ends when no probability moves by ``tolerance`` in
    a step. Scenes are the innermost axis in memory, so that arithmetic runs along them, not along a few classes.

    Args:
        apply: W [P, K, d] -> F [P, K, n].
        solve: R [P, K, n] -> W, the solution of (X^T X / 2 + l2) W = X^T R.
        y_KN: one-hot labels.
        size: number of representations P.
    """
    sizes, columns = torch.tensor(targets.classes, device=y_KN.device), len(y_KN)
    blocks = _equal_blocks(targets.classes)
    start = _probabilities(torch.zeros_like(y_KN).unsqueeze(0), blocks)
    weights = solve((y_KN - start).expand(size, -1, -1).contiguous())
    before = torch.zeros_like(weights)
    since_restart = torch.ones(size, len(targets.classes), device=y_KN.device, dtype=y_KN.dtype)
    old_p: Tensor | None = None
    for step in range(iterations):
        momentum = (since_restart - 1) / (since_restart + 2)
        momentum = momentum.repeat_interleave(sizes, dim=1, output_size=columns).unsqueeze(-1)
        ahead = weights + momentum * (weights - before)
        f = apply(ahead)
        p = _probabilities(f, blocks)
        # Comparing costs a pass over all probabilities: one step of every ten is compared with the one before it.
        if old_p is not None and float((p - old_p).abs_().max()) < tolerance:
            break
        old_p = p if step % 10 == 8 else None
        before, weights = weights, solve(f.mul_(0.5).sub_(p).add_(y_KN))
        against_step = ((ahead - weights) * (weights - before)).sum(-1)
        turns_back = torch.stack([own.sum(1) for own in against_step.split(targets.classes, dim=1)], dim=1) > 0
        since_restart = torch.where(turns_back, torch.ones_like(since_restart), since_restart + 1)
    return weights


def _equal_blocks(classes: Sequence[int]) -> list[tuple[slice, int]]:
    """Neighbouring targets with equally many classes, as (their columns, classes): one softmax serves them all."""
    blocks: list[tuple[slice, int]] = []
    start = 0
    for size in classes:
        if blocks and blocks[-1][1] == size:
            blocks[-1] = (slice(blocks[-1][0].start, start + size), size)
        else:
            blocks.append((slice(start, start + size), size))
        start += size
    return blocks


def _probabilities(f_PKN: Tensor, blocks: Sequence[tuple[slice, int]]) -> Tensor:
    parts = [f_PKN[:, columns].unflatten(1, (-1, size)).softmax(2).flatten(1, 2) for columns, size in blocks]
    return torch.cat(parts, dim=1)


def _groups(features_PND: Tensor) -> Iterator[Tensor]:
    """Representations a few at a time, so that memory stays bounded."""
    each = max(1, _BATCH_ELEMENTS // (features_PND.shape[1] * features_PND.shape[2]))
    yield from features_PND.split(each)
