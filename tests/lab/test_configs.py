"""Every config composes and names what exists; wrong names and types are answered with the valid ones."""

from pathlib import Path

import pytest
import yaml
from conftest import OPTUNA
from hydra.core.override_parser.overrides_parser import OverridesParser

from lab.command import problem_with
from lab.config import CONFIGS, check, compose_config
from lab.errors import LabError

GROUPS = {
    "experiment": "",
    "softmax": "",
    "softmax/schedule": "",
    "model": "",
    "optim": "",
    "callbacks": "",
    "trainer": "",
    "logger": "",
    "paths": "",
    "intervention": "",
    "optim/lr": "",
    "debug": "",
    "data": "",
    "data/source": "",
    "data/task": "",
    "hydra/launcher": "",
    # Chosen by who wants one: nothing of these groups is in the defaults.
    "row": "+",
    "sweep": "+",
}


def choices() -> list[str]:
    return [
        f"{prefix}{group}={path.stem}"
        for group, prefix in GROUPS.items()
        for path in sorted((CONFIGS / group).glob("*.yaml"))
    ]


def composed(*overrides: str):
    config = compose_config(overrides)
    config.paths.run = "runs/test"
    return config


def test_every_group_is_listed_here() -> None:
    found = {str(path.parent.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml")} - {"."}
    assert found == set(GROUPS)


@pytest.mark.parametrize("choice", choices())
def test_every_config_composes_and_fits_what_it_names(choice: str) -> None:
    if choice == "+sweep=search" and not OPTUNA:
        problem = problem_with([choice])
        assert problem is not None and "pip install -e '.[optuna]'" in problem
        return
    check(composed(choice))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("softmax=norm_softmx", ["norm_softmx", "did you mean 'norm_softmax'", "learnable_temperature"]),
        ("callbacks=[attention_map]", ["callbacks=attention_map", "did you mean 'attention_maps'"]),
        ("softmax.tua=1", ["did you mean 'tau'"]),
        ("experiment=nothing", ["main_task", "reasoning"]),
        ("optmi.lr=1", ["did you mean 'optim'"]),
        ("data.batch_sice=3", ["did you mean 'batch_size'"]),
    ],
)
def test_wrong_names_are_answered_with_the_valid_ones(override: str, words: list[str]) -> None:
    problem = problem_with([override])
    assert problem is not None
    for word in words:
        assert word in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("softmax.tau=abc", "softmax.tau='abc' is wrong"),
        ("data.batch_size=half", "data.batch_size='half' is wrong"),
        ("optim.lr=[1]", "optim.lr"),
        ("+softmax.width=3", "softmax.width is not an option of"),
        ("softmax._target_=lab.softmax.nothing.Nope", "cannot be imported"),
    ],
)
def test_wrong_types_are_refused(override: str, words: str) -> None:
    with pytest.raises(LabError) as error:
        check(composed(override))
    assert words in str(error.value)


def test_right_overrides_and_sweeps_pass() -> None:
    assert problem_with(["softmax=norm_softmax", "softmax.tau=0.333", "seed=3", "trainer=gpu"]) is None
    assert problem_with(["softmax=softmax,norm_softmax", "seed=range(3)"]) is None
    assert problem_with(["softmax=glob(*)", "experiment=reasoning"]) is None


@pytest.mark.parametrize("sweep", sorted((CONFIGS / "sweep").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_run_of_a_ready_sweep_fits(sweep: Path) -> None:
    """Each value of each swept key, beside the first values of the others."""
    if sweep.stem == "search" and not OPTUNA:
        pytest.skip("Optuna's sweeper is not installed: pip install -e '.[optuna]'")
    params = yaml.safe_load(sweep.read_text())["hydra"]["sweeper"]["params"]
    swept = OverridesParser.create().parse_overrides([f"{key}={value}" for key, value in params.items()])
    values = [
        [o.input_line]
        if not o.is_sweep_override()
        else [f"{o.get_key_element()}={value}" for value in (o.value().start, o.value().end)]
        if o.is_interval_sweep()
        else [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
        for o in swept
    ]
    first = [own[0] for own in values]
    for place, own in enumerate(values):
        for value in own[: 1 if first[place].startswith("seed") else None]:
            check(composed(f"+sweep={sweep.stem}", *first[:place], value, *first[place + 1 :]))


def test_rows_of_table_1_are_the_papers() -> None:
    def row(name: str):
        return composed("experiment=main_task", f"+row={name}")

    assert row("vit_tau_1_over_0.025").softmax.tau == pytest.approx(1 / 0.025)
    assert row("vit_tau_1_over_0.075").softmax.tau == pytest.approx(1 / 0.075)
    assert row("norm_softmax_tau_1_over_3").softmax.tau == pytest.approx(1 / 3)
    assert (row("norm_softmax").optim.lr, row("norm_softmax").optim.min_lr) == (1e-5, 1e-6)
    assert (row("vit_heat_treatment").optim.lr, row("vit").optim.lr) == (1e-4, 5e-4)
    assert (row("vit_warmup_20").optim.warmup_epochs, row("vit_weight_decay_0.5").optim.weight_decay) == (20, 0.5)
    for name in ("warmup_20", "weight_decay_0.5"):
        assert row(f"vit_{name}").optim == composed("experiment=main_task", f"optim=deit_{name}").optim


def test_reasoning_takes_the_standard_deviation() -> None:
    assert composed("experiment=reasoning", "softmax=norm_softmax").softmax.statistic == "std"
    assert composed("experiment=main_task", "softmax=norm_softmax").softmax.statistic == "var"


def test_configs_lie_beside_the_code() -> None:
    assert Path(__file__).resolve().parents[2] / "configs" == CONFIGS
