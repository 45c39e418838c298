"""Effect of the columns of two garments on a model's logits, on "top if above": they alone tell which is the answer.

    python -m scripts.columns "" "model.patch_size=8" "model.init=torch model.position_std=1.0" --set paths.data=/data
    python -m scripts.columns --run runs/top_if_above/softmax/seed=0 --out columns.csv

Each pair of garments is shown in its four arrangements, noise included. The logits [P, 2, 2, classes] of P pairs, by
the column of the top and of the bottom garment, are split as in an analysis of variance of two factors:

- garments: the mean over the four arrangements, by its spread over pairs;
- one column: what moves when one of the garments changes its column, whichever column the other has;
- same column: what moves with whether the columns are the same, so all that can tell which garment is the answer.

A model that does not tell places apart has 0 in both. The numbers are root mean squares over pairs and classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from lab.config.arguments import Parser
from lab.config.compose import compose_config
from lab.console import LabError, refusals
from lab.datasets.scenes import compose
from lab.datasets.seeding import generator_of
from lab.datasets.tasks.top_if_above import TopIfAbove
from lab.datasets.vision import VisionData
from lab.files import write_text
from lab.observation.recorder import evaluating
from lab.training.build import build_model_and_data
from lab.training.load import read_trained

_SCENES = 64  # that go through the model at once


def arrangements(data: VisionData, pairs: int) -> Tensor:
    """Scenes [P, 2, 2, 3, H, W]: pairs of garments from the test split, by the columns of the top and the bottom one.

    Raises:
        LabError: if the task is another one.
    """
    if not isinstance(data.task, TopIfAbove):
        raise LabError(f"the columns of garments are those of top_if_above, and this is {type(data.task).__name__}")
    bank = data.bank("test")
    drawn = data.task.sample(bank, torch.arange(pairs), generator_of("columns", 0))
    tiles_P2 = torch.stack([drawn.latents["target_1_tile"], drawn.latents["target_2_tile"]], 1)
    images_P2 = drawn.images.gather(1, tiles_P2)
    colors_P23 = torch.take_along_dim(drawn.colors, tiles_P2.unsqueeze(-1), 1)
    scenes = []
    for top in (0, 1):
        for bottom in (0, 1):
            images, colors = torch.zeros_like(drawn.images), torch.zeros_like(drawn.colors)
            images[:, [top, 2 + bottom]], colors[:, [top, 2 + bottom]] = images_P2, colors_P23
            scenes.append(compose(bank.pixels, images, colors))
    return torch.stack(scenes, 1).unflatten(1, (2, 2))


@torch.no_grad()
def effects(model: nn.Module, scenes_P22: Tensor) -> dict[str, float]:
    """Root mean squares of the parts of the logits, in double precision; see the module."""
    model = model.double()
    with evaluating(model):
        flat = scenes_P22.flatten(0, 2).double()
        logits_P22C = torch.cat([model(some) for some in flat.split(_SCENES)]).unflatten(0, scenes_P22.shape[:3])
    garments_PC = logits_P22C.mean((1, 2))
    rest = logits_P22C - garments_PC[:, None, None]
    top, bottom = rest.mean(2), rest.mean(1)  # [P, 2, C], by the column of one garment
    same = rest - top[:, :, None] - bottom[:, None]
    return {
        "garments": _rms(garments_PC - garments_PC.mean(0)),
        "one column": _rms(torch.stack([top, bottom])),
        "same column": _rms(same),
    }


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def table(settings: Sequence[str], runs: Sequence[str | Path], pairs: int, common: Sequence[str] = ()) -> pd.DataFrame:
    """A row for each setting, before training, and for each trained run.

    Args:
        settings: overrides of ``experiment=top_if_above``, each a text with spaces between them.
        runs: run folders.
        pairs: pairs of garments.
        common: overrides of all settings, which their names leave out.
    """
    rows = []
    for setting in settings:
        config = compose_config(["experiment=top_if_above", *common, *setting.split()])
        module, data = build_model_and_data(config)
        rows.append((setting or "as it is", 0, module.model, data))
    for run in runs:
        trained = read_trained(run)
        rows.append((str(run), trained.step, trained.model(), trained.data()))
    found = []
    for name, step, model, data in rows:
        if not isinstance(data, VisionData):
            raise LabError(f"{name}: these data have no scenes of garments")
        data.setup("fit")
        own = effects(model, arrangements(data, pairs))
        found.append({"setting": name, "step": step, **own, "same / garments": own["same column"] / own["garments"]})
    return pd.DataFrame(found)


def main() -> None:
    """Prints the table."""
    parser = Parser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("settings", nargs="*", help='overrides of experiment=top_if_above, as one text: "" is as it is')
    parser.add_argument("--run", type=Path, action="append", default=[], help="a run folder; may be given again")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides of all settings")
    parser.add_argument("--pairs", type=int, default=128, help="pairs of garments")
    parser.add_argument("--out", type=Path, help="a CSV file to write as well")
    given = parser.parse_args()
    if given.pairs < 2:
        raise LabError(f"--pairs={given.pairs} is too few: give 2 or more")
    if not (given.settings or given.run):
        raise LabError('nothing to look at: give settings, such as "" or "model.patch_size=8", or --run=<run folder>')
    found = table(given.settings, given.run, given.pairs, given.set)
    print(found.to_string(index=False, float_format=lambda value: f"{value:.2e}"))
    if given.out is not None:
        write_text(given.out, found.to_csv(index=False, float_format="%.3e", lineterminator="\n"))


if __name__ == "__main__":
    with refusals():
        main()
