"""Every config composes and names what exists; wrong names and types are answered with the valid ones."""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

import pytest
from conftest import composed, problem_with
from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from pydantic import Field, PositiveInt

import lab
from hydra_plugins.eureka_lab import offer
from lab.config.check import check, check_arguments
from lab.config.command_line import BY_A_SWEEP, check_overrides, in_order
from lab.config.compose import CONFIGS, initialized
from lab.config.hydra_internals import loader
from lab.config.overrides import values_of
from lab.console import LabError
from lab.datasets.loading import DataModule
from lab.runs.spec import RunSpec
from lab.sweeps.record import planned_runs
from lab.training.optim import OptimConfig

GROUPS = {
    "experiment": "",
    "softmax": "",
    "softmax/schedule": "",
    "softmax/normaliser": "",
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
    # Only data of text has a corpus, and only that of characters has alphabets.
    "data/corpus": "data=masked_language ",
    "data/problems": "data=clrs_text ",
    # A tokenizer comes with a pretrained model.
    "data/tokenizer": "data=clrs_text model=pretrained ",
    "data/alphabets": "data=in_context ",
    "hydra/launcher": "",
    "hydra/sweeper": "",
    # Chosen by who wants one: nothing of these groups is in the defaults.
    "row": "+",
    "sweep": "+",
}


# Every experiment with every softmax by test_zoo, sweeps run by run below.
ELSEWHERE = ("experiment", "softmax", "sweep")


def choices() -> list[str]:
    return [
        f"{prefix}{group}={path.stem}"
        for group, prefix in GROUPS.items()
        for path in sorted((CONFIGS / group).glob("*.yaml"))
        if group not in ELSEWHERE
    ]


def test_every_group_is_listed_here() -> None:
    found = {str(path.parent.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml")} - {"."}
    assert found == set(GROUPS)


@pytest.mark.parametrize("choice", choices())
def test_every_config_composes_and_fits_what_it_names(choice: str) -> None:
    check(composed(*choice.split()))


def test_a_search_without_optuna_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.config.command_line.find_spec", lambda name: None)
    for sweep in ("search", "main_task_small"):
        problem = problem_with([f"+sweep={sweep}"])
        assert problem is not None and "pip install 'eureka-lab[optuna]'" in problem


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("softmax=norm_softmx", ["norm_softmx", "did you mean 'norm_softmax'", "learnable_temperature"]),
        ("callbacks=[attention_map]", ["callbacks=attention_map", "did you mean 'attention_maps'"]),
        ("softmax.tua=1", ["did you mean 'tau'"]),
        ("experiment=nothing", ["main_task", "masked_language"]),
        ("optmi.lr=1", ["did you mean 'optim.lr'"]),
        ("data.batch_sice=3", ["did you mean 'batch_size'"]),
        # Named by another place's name, or by other programs'.
        ("batch_size=64", ["the config has no 'batch_size'", "did you mean 'data.batch_size'"]),
        ("optim.learning_rate=1", ["optim has no 'learning_rate'", "did you mean 'optim.lr'"]),
        ("learning_rate=1", ["did you mean 'optim.lr'"]),
        ("epochs=10", ["did you mean 'trainer.max_epochs'"]),
        ("trainer.epochs=10", ["did you mean 'trainer.max_epochs'"]),
        ("wd=0.1", ["did you mean 'optim.weight_decay'"]),
        # A default for a config that is not chosen does nothing.
        (
            "experiment=reasoning softmax.statistic=var",
            ["softmax has no 'statistic'; valid: normaliser, schedule, tau"],
        ),
        # That of another group would be no help.
        ("experiment=clrs_text_small data.tokenizer.name=x", ["data.tokenizer has no 'name'; it has no options"]),
        # Added, not overridden; and the other way round.
        ("softmax.normaliser.bias=1", ["softmax.normaliser has no 'bias'"]),
        ("callbacks.eureka.plateau=1", ["callbacks.eureka has no 'plateau'"]),
        # An option that the config does not list, but its class takes.
        (
            "callbacks=attention_entropy callbacks.attention_entropy.scnes=3",
            ["did you mean 'scenes'", "every_n_epochs, folder, pictures_every_n_epochs, scenes"],
        ),
        ("trainer.profiler=simple", ["trainer.profiler is not in the config yet", "+trainer.profiler="]),
        ("sweep=table_1", ["+sweep=table_1"]),
        ("row=vit", ["+row=vit"]),
        ("sweep=tabel_1", ["did you mean 'table_1'", "+sweep="]),
        ("+softmax=norm_softmax", ["write softmax=, without the plus"]),
        ("experiment=reasoning optim/lr=max_1e-4_min_1e-6", ["optim/lr= belongs to optim=deit or deit_warmup_20"]),
        ("experiment=reasoning data/source=drawn", ["data/source= belongs to data=main_task, and another"]),
        ("softmax=[norm_softmax]", ["chooses several, and one is needed: softmax=NAME"]),
        ("experiment=[reasoning,main_task]", ["chooses several, and one is needed: experiment=NAME"]),
        ("hydra.lancher.partition=x", ["did you mean 'launcher'"]),
        ("hydra.launcher.partition=x", ["none is chosen: add hydra/launcher=", "slurm"]),
    ],
)
def test_wrong_names_are_answered_with_the_valid_ones(override: str, words: list[str]) -> None:
    problem = problem_with(override.split(" "))
    assert problem is not None
    for word in words:
        assert word in problem
    assert "\n" not in problem


@pytest.mark.parametrize(
    ("launcher", "wrong", "right"), [("slurm", "partion", "partition"), ("joblib", "njobs", "n_jobs")]
)
def test_options_of_the_chosen_launcher_are_told(launcher: str, wrong: str, right: str) -> None:
    offer([])
    problem = problem_with([f"hydra/launcher={launcher}", f"hydra.launcher.{wrong}=x", "seed=0,1"])
    assert problem is not None and problem.startswith(f"hydra.launcher has no '{wrong}'; did you mean '{right}'?")
    assert "_target_" not in problem and "callbacks" not in problem


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["hydra/launcher=submitit_slurm", "seed=3"], "hydra/launcher=submitit_slurm has an effect only in sweeps"),
        (["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"], "hydra/launcher=joblib has an effect only in sweeps"),
        (["hydra.sweeper.max_batch_size=3"], "hydra.sweeper.max_batch_size=3 has an effect only in sweeps"),
        (["+sweep=table_10", "seed=3"], "+sweep=table_10 is one run here and leaves experiment, +row out"),
        (["seed=0,1"], "seed=0,1 asks for several runs"),
        (["softmax=glob(norm*)"], "asks for several runs"),
    ],
)
def test_what_acts_in_a_sweep_alone_is_refused_in_a_single_run(overrides: list[str], words: str, capsys) -> None:
    offer([])
    problem = problem_with(overrides, several=BY_A_SWEEP)
    assert problem is not None and words in problem and "add -m, as in python -m lab.train -m" in problem
    assert problem_with(overrides) is None
    check_overrides(["-m", *overrides])
    check_overrides([*overrides, "--multirun"])
    check_overrides([*overrides, "hydra.mode=MULTIRUN"])
    with pytest.raises(SystemExit, match="1"):
        check_overrides(overrides)
    assert capsys.readouterr().err == f"error: {problem}\n"


def test_a_run_of_a_sweep_may_name_it() -> None:
    """As the summary of a run that a job has made does."""
    one = ["+sweep=table_10", "experiment=digit_grouping", "+row=vit", "seed=3"]
    assert problem_with(one, several=BY_A_SWEEP) is None
    assert problem_with(["hydra/launcher=basic"], several=BY_A_SWEEP) is None


def test_flags_may_stand_among_the_overrides(capsys) -> None:
    typed = ["seed=0,1", "-m", "softmax=softmax", "--config-dir", "conf", "+row=vit"]
    assert in_order(typed) == ["-m", "--config-dir", "conf", "seed=0,1", "softmax=softmax", "+row=vit"]
    assert in_order(["-m", "seed=1"]) == ["-m", "seed=1"]
    assert in_order(["seed=0,1", "-m", "--help", "--config-dir", "conf"]) == ["--help", "--config-dir", "conf"]
    assert in_order(["experiment=nonsense", "--hydra-help"]) == ["--hydra-help"]
    # No short form of a flag of Hydra's, which reads a pickle.
    with pytest.raises(LabError, match=r"^--experiment=reasoning is no flag: .* without dashes: experiment=reasoning$"):
        in_order(["--experiment=reasoning", "seed=3"])
    check_overrides(["seed=0,1", "-m", "softmax=softmax"])
    with pytest.raises(SystemExit, match="1"):
        check_overrides(["-m", "seed=0,1", "--cfg", "hydra"])
    assert "python -m lab.status --plan lists" in capsys.readouterr().err


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """Configs of one's own: a softmax and an experiment."""
    for group, name, text in (
        ("softmax", "ext", "_target_: lab.attention.rules.fixed.Fixed\n_partial_: true\ntau: 2.0\n"),
        ("experiment", "mine", "# @package _global_\ndefaults: [reasoning, {override /softmax: ext}]\n"),
    ):
        (tmp_path / "conf" / group).mkdir(parents=True)
        (tmp_path / "conf" / group / f"{name}.yaml").write_text(text)
    return tmp_path / "conf"


@pytest.mark.parametrize("flags", [["--config-dir", "conf"], ["--config-dir=conf"], ["-cd", "conf"]])
def test_configs_of_ones_own_are_found(conf: Path, flags: list[str], monkeypatch, capsys) -> None:
    monkeypatch.chdir(conf.parent)
    check_overrides([*flags, "softmax=ext", "softmax.tau=3", "experiment=mine"])
    check_overrides(["-m", "experiment=mine", *flags, "softmax=ext,softmax"])
    with pytest.raises(SystemExit, match="1"):
        check_overrides([*flags, "softmax=etx"])
    assert "softmax=etx does not exist; did you mean 'ext'? valid: adaptive_temperature, " in capsys.readouterr().err


def test_what_a_config_lacks_or_an_override_takes_out_is_named(conf: Path) -> None:
    (conf / "softmax" / "empty.yaml").touch()
    for words, path in (
        ([f"hydra.searchpath=[file://{conf}]", "softmax=empty"], "softmax._target_"),
        (["~trainer.max_epochs"], "trainer.max_epochs"),
    ):
        problem = problem_with(["experiment=reasoning", *words])
        assert problem == f"{path} is missing, and every run needs it: let a config or an override give it"


def test_configs_of_ones_own_are_found_by_the_search_path(conf: Path) -> None:
    path = f"hydra.searchpath=[file://{conf}]"
    assert problem_with([path, "experiment=mine", "softmax.tau=3"], several=BY_A_SWEEP) is None
    assert problem_with(["softmax=ext"]) is not None
    problem = problem_with(["softmax=ext"], conf / "nowhere")
    assert problem is not None and "nowhere is no folder" in problem
    for wrong in ("file:///nowhere/conf", "file://conf"):
        problem = problem_with([f"hydra.searchpath=[{wrong}]", "experiment=reasoning"], several=BY_A_SWEEP)
        assert problem is not None and f"hydra.searchpath={wrong} is no folder: give the whole path" in problem


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("softmax.tau=abc", "softmax.tau='abc' is wrong"),
        ("data.batch_size=half", "data.batch_size='half' is wrong"),
        # As a folder whose name is no text in UTF-8 reaches Python.
        ("paths.data='a\udcff'", r"paths.data='a\udcff' is no text in UTF-8: give it another name"),
        ("optim.lr=[1]", "optim.lr"),
        ("data.batch_size=${no.size}", "interpolation key 'no.size' not found; give it one with data.batch_size="),
        ("+softmax.width=3", "softmax.width is not an option of"),
        ("+softmax.heads=2", "softmax.heads is not an option of Fixed; valid: tau"),
        ("softmax._target_=lab.softmax.nothing.Nope", "cannot be imported"),
        (
            "softmax._target_=lab.attention.rules.norm.NormSoftmx",
            "cannot be imported: lab.attention.rules.norm has no 'NormSoftmx'; did you mean 'NormSoftmax'",
        ),
        ("+trainer.val_check_interval=4", "a run validates at the end of its epochs"),
        ("+trainer.val_check_interval=1", "val_check_interval=1 is wrong: it must be 1.0: a run validates at the end"),
        ("+trainer.val_check_interval=true", "val_check_interval=true is wrong: it must be 1.0: a run validates at"),
        ("+trainer.overfit_batches=2", "trainer.limit_train_batches trains on a few batches"),
        ("trainer.limit_train_batches=0.0", "trainer.limit_train_batches"),
        (
            "trainer.enable_checkpointing=false",
            "trainer.enable_checkpointing=false is wrong: it must be true: checkpoints.every_minutes",
        ),
        (
            "+trainer.fast_dev_run=true",
            "trainer.fast_dev_run=true is wrong: it must be false: debug=fast is a short run",
        ),
        ("+trainer.fast_dev_run=2", "trainer.fast_dev_run=2 is wrong: it must be false: debug=fast is a short run"),
    ],
)
def test_wrong_types_are_refused(override: str, words: str) -> None:
    with pytest.raises(LabError) as error:
        check(composed(override))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "there is no module own_part; yours is found by PYTHONPATH=<its folder>"),
        ("", "own_part has no 'Learn'"),
        ("def learn(:", "SyntaxError: invalid syntax (own_part.py, line 1)"),
        ("import own_gone", "ModuleNotFoundError: No module named 'own_gone' (own_part.py, line 1, `import own_gone`)"),
        (
            "raise SystemExit(3)",
            "its module ends Python (own_part.py, line 1, `raise SystemExit(3)`): put what a script does below "
            "if __name__ == '__main__':",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_as_python_tells_it(
    text: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is not None:
        (tmp_path / "own_part.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_part", raising=False)
    with pytest.raises(LabError) as error:
        check(composed("model._target_=own_part.Learn"))
    assert str(error.value) == f"model._target_=own_part.Learn cannot be imported: {why}"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("+trainer.gradient_clip_algorithm=value", "clips nothing by itself: give trainer.gradient_clip_val, too"),
        ("trainer.precision=16-mixed", "trainer.precision=16-mixed is for GPUs: on a CPU take bf16-mixed or 32-true"),
        ("+trainer.min_epochs=99999", "trainer.min_epochs=99999 is above trainer.max_epochs="),
    ],
)
def test_options_of_the_trainer_that_would_do_nothing_are_refused(override: str, words: str) -> None:
    assert words in str(problem_with(["experiment=main_task_small", override]))


@pytest.mark.parametrize("added", [[], ["+optim/lr=max_1e-4_min_1e-6"]])
def test_a_row_that_sets_what_the_experiment_lacks_is_named(added: list[str]) -> None:
    problem = problem_with(["experiment=main_task_small", "+row=norm_softmax", *added])
    assert problem is not None and problem.startswith(
        "+row=norm_softmax sets optim/lr=, of which nothing is chosen here"
    )


def test_right_overrides_and_sweeps_pass() -> None:
    assert problem_with(["softmax=norm_softmax", "softmax.tau=0.333", "seed=3", "trainer=gpu"]) is None
    assert problem_with(["softmax=softmax,norm_softmax", "seed=range(3)"]) is None
    assert problem_with(["softmax=glob(*)", "experiment=reasoning"]) is None


# Table 4 is Table 1, as the test after this one says.
SWEEPS = [path for path in sorted((CONFIGS / "sweep").glob("*.yaml")) if path.stem != "table_4"]


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda path: path.stem)
def test_every_run_of_a_ready_sweep_fits(sweep: Path) -> None:
    """Each value of each swept key, beside the first values of the others."""
    with initialized():
        params = compose("train", [f"+sweep={sweep.stem}"], return_hydra_config=True).hydra.sweeper.params
        swept = OverridesParser.create(loader()).parse_overrides(
            [f"{key}={value}" for key, value in values_of(params).items()]
        )
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


def test_every_table_of_the_paper_is_a_sweep() -> None:
    """Tables 1 to 10 by their names; Table 4 tells of Table 1's runs."""
    assert {f"table_{number}" for number in range(1, 11)} <= {path.stem for path in (CONFIGS / "sweep").glob("*.yaml")}
    with initialized():
        first, fourth = (
            compose("train", [f"+sweep={name}"], return_hydra_config=True).hydra.sweeper.params
            for name in ("table_1", "table_4")
        )
    assert first == fourth and len(first) == 3


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


@pytest.mark.parametrize("softmax", ["norm_softmax", "norm_softmax_heat_treatment"])
def test_an_experiment_sets_options_of_norm_softmax_in_its_own_file(softmax: str) -> None:
    def options(*overrides: str) -> tuple[str, float | None]:
        own = composed(f"softmax={softmax}", *overrides).softmax
        return own.statistic, own.tau

    assert options("experiment=main_task") == ("var", None)
    assert options("experiment=reasoning") == ("std", None)
    assert options("experiment=main_task_small") == ("std", 1.0)
    assert options("experiment=main_task_small", "softmax.statistic=var", "softmax.tau=null") == ("var", None)
    assert options("experiment=main_task", "+row=norm_softmax_tau_1_over_3", f"softmax={softmax}")[1] == 1 / 3


@pytest.mark.parametrize("softmax", ["softmax", "heat_treatment", "learnable_temperature", "adaptive_temperature"])
def test_those_options_leave_other_softmaxes_alone(softmax: str) -> None:
    for experiment in ("reasoning", "main_task_small"):
        config = composed(f"experiment={experiment}", f"softmax={softmax}")
        assert config.softmax.tau is None and "statistic" not in config.softmax
        check(config)


def test_configs_lie_beside_the_code() -> None:
    assert Path(__file__).resolve().parents[3] / "configs" == CONFIGS.resolve()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("force=no", "force='no' is wrong: it must be true or false"),
        ("compile=off", "compile='off' is wrong: it must be true or false"),
        ("model.qkv_bias=no", "model.qkv_bias='no' is wrong: it must be true or false"),
        ("threads=0", "threads=0 is wrong: it must be greater than 0"),
        ("seed=one", "seed='one' is wrong"),
        ("checkpoints.every_minutes=abc", r"checkpoints\.every_minutes='abc' is wrong"),
        ("diagnostics.every_n_epochs=-1", r"diagnostics\.every_n_epochs=-1 is wrong"),
        ("diagnostics.every_n_epochs=0", r"^diagnostics\.every_n_epochs=0 is wrong: it must be greater than 0$"),
        ("seeds=true", r"^seeds=true is wrong: it must be a whole number or be a list$"),
        ("optim.lr=inf", r"^optim\.lr=inf is wrong: it must be a finite number$"),
    ],
)
def test_plain_values_are_checked_too(override: str, words: str) -> None:
    with pytest.raises(LabError, match=words):
        check(composed(override))


class Unread(Protocol):
    """Of which an object cannot be asked whether it is one."""

    def read(self) -> None: ...


def target(
    size: PositiveInt = 1,
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5,
    most: Annotated[float, Field(le=2, allow_inf_nan=True)] | None = None,
    at_least: Annotated[float, Field(ge=2, allow_inf_nan=True)] = 2,
    kind: Literal["row", "block"] = "row",
    parts: Sequence[Literal["q", "k"]] = (),
    sides: tuple[int, int] = (1, 1),
    few: Annotated[list[int], Field(min_length=2)] = [],  # noqa: B006
    either: PositiveInt | list[int] = 1,
    name: str = "",
    folder: Path = Path(),
    on: bool = False,
    options: dict[str, float] | None = None,
    data: DataModule | None = None,
    unread: Unread | None = None,
) -> None:
    """Takes one of everything."""


@pytest.mark.parametrize(
    ("option", "value", "must"),
    [
        ("size", 0, "size=0 is wrong: it must be greater than 0"),
        ("size", True, "size=true is wrong: it must be a whole number"),
        ("size", 2.0, "size=2.0 is wrong: it must be a whole number"),
        ("size", "3", "size='3' is wrong: it must be a whole number"),
        ("size", None, "size=null is wrong: it must be a whole number"),
        ("share", 1, "share=1 is wrong: it must be greater than 0 and less than 1"),
        ("share", True, "share=true is wrong: it must be a number"),
        ("share", math.inf, "share=inf is wrong: it must be a finite number"),
        ("share", math.nan, "share=nan is wrong: it must be a finite number"),
        ("most", 3, "most=3 is wrong: it must be at most 2"),
        ("at_least", 1.5, "at_least=1.5 is wrong: it must be at least 2"),
        ("kind", "rows", "kind='rows' is wrong: it must be 'row' or 'block'"),
        ("parts", ["q", "v"], "parts[1]='v' is wrong: it must be 'q' or 'k'"),
        ("parts", "q", "parts='q' is wrong: it must be a list"),
        ("sides", [1], "sides=[1] is wrong"),
        ("few", [1], "few=[1] is wrong: it must have 2 entries or more"),
        ("either", "a", "either='a' is wrong: it must be a whole number or be a list"),
        ("either", [1, 0.5], "either[1]=0.5 is wrong"),
        ("name", 3, "name=3 is wrong: it must be text"),
        ("on", "no", "on='no' is wrong: it must be true or false"),
        ("on", 1, "on=1 is wrong: it must be true or false"),
        ("options", [1], "options=[1] is wrong: it must be a mapping"),
        ("options", {"a": {"b": 1}}, "options.a={'b': 1} is wrong: it must be a number"),
        ("data", "mnist", "data='mnist' is wrong: it must be a config with a _target_"),
        ("sise", 1, "sise is not an option of target; did you mean 'size'? valid: "),
    ],
)
def test_a_value_is_held_to_its_annotation(option: str, value: object, must: str) -> None:
    with pytest.raises(LabError) as error:
        check_arguments(target, {option: value}, "here")
    assert str(error.value).startswith(f"here.{must}")
    assert "\n" not in str(error.value)


def test_a_callback_without_a_name_above_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "callbacks").mkdir()
    (tmp_path / "callbacks" / "own.yaml").write_text("_target_: my_diagnostics.Largest\n")
    where = f"hydra.searchpath=[file://{tmp_path}]"
    with pytest.raises(LabError, match=r"callbacks\._target_=my_diagnostics\.Largest needs a name above it"):
        lab.run([where, "experiment=reasoning", "callbacks=[reasoning,own]", f"paths.runs={tmp_path / 'runs'}"])
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"share": 0.1, "most": -math.inf, "at_least": math.inf, "kind": "block", "parts": ["k"], "sides": [1, 2]},
        {"most": None, "few": (1, 2), "either": [1], "folder": "/a", "on": True, "options": {"a": 1}},
        {"data": {"_target_": "somewhere"}, "unread": "not for pydantic", "most": -(2**70)},
        {"folder": Path("/made/in/python")},
    ],
)
def test_what_an_annotation_allows_passes(options: dict[str, object]) -> None:
    check_arguments(target, options, "here")


@dataclass(frozen=True)
class OfAnotherModule(OptimConfig):
    """Annotations of the fields are read where they were written: there is no PositiveFloat here."""

    momentum: float = 0.0


def test_fields_that_a_data_class_inherits_are_checked() -> None:
    with pytest.raises(LabError, match=r"^optim\.lr=-1 is wrong: it must be greater than 0$"):
        check_arguments(OfAnotherModule, {"lr": -1}, "optim")


def test_what_is_no_function_of_python_is_left_alone() -> None:
    check_arguments(dict, {"a": 1}, "here")
    check_arguments(lambda **options: None, {"a": 1}, "here")


def test_an_experiments_default_of_norm_softmax_that_there_is_none_of_is_refused() -> None:
    with pytest.raises(
        LabError, match=r"norm_softmax\.statistics is no default of NormSoftmax; did you mean 'statistic'"
    ):
        check(composed("experiment=reasoning", "+norm_softmax.statistics=var"))


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["-m", "seed=0,1", "hydra.job.chdir=true"], "hydra.job.chdir=true would put runs where the lab does not look"),
        (["paths.runs='~nobodyx/runs'"], "paths.runs='~nobodyx/runs' names a home folder that does not exist"),
        (["paths.run=mine"], "paths.run cannot be set, as it follows from what is run: set paths.runs"),
        (["-m", "seed=0,1", "paths.runs=a,b"], "a sweep's runs lie in one place"),
        (["-m", "seed=0,1", "hydra/launcher=joblib", "++hydra.launcher.n_jobs=0"], "hydra.launcher.n_jobs=0 is wrong"),
        (["optim.schedule=multistep"], "optim.schedule='multistep' is wrong"),
        (["+optims.lr=1"], "+optims.lr=1: nothing reads optims; did you mean 'optim'?"),
        (["-m", "seed=0,1", "++warmup=2"], "++warmup=2: nothing reads warmup; valid: callbacks, "),
        (
            ["-m", "seed=0,1", "softmax=hard", "+norm_softmax.tau=1"],
            "+norm_softmax.tau=1 does nothing: it is a default for",
        ),
        (
            ["-m", "seed=0,1", "softmax=norm_softmax", "softmax.tau=2", "+norm_softmax.tau=1"],
            "which is not chosen or has a value of its own",
        ),
        (["-m", "softmax=hard,linear", "+norm_softmax.tau=1,2"], "+norm_softmax.tau=1,2 does nothing"),
        (
            ["-m", "seed=0,1", "+drawn.train_size=9"],
            "+drawn.train_size=9 does nothing: it is a default for data/source=drawn",
        ),
        (["++diagnostics.every_n_epoch=5"], "nothing reads diagnostics.every_n_epoch; did you mean 'every_n_epochs'?"),
        (["+checkpoints.every_hours=3"], "nothing reads checkpoints.every_hours; did you mean 'every_minutes'?"),
        (["++diagnostics.every_n_epochs.foo=3"], "diagnostics.every_n_epochs={'foo': 3} is wrong: it must be a whole"),
        (["++paths.dta=/x"], "nothing reads paths.dta; did you mean 'data'?"),
        (
            ["--experimental-rerun", "job.pickle"],
            "--experimental-rerun would run a pickled job: give the run's command",
        ),
    ],
)
def test_what_would_be_ignored_or_go_astray_is_refused(typed: list[str], words: str, capsys) -> None:
    offer(typed)
    with pytest.raises(SystemExit, match="1"):
        check_overrides(typed)
    told = capsys.readouterr().err
    assert words in told and "full_key" not in told


def test_a_default_that_nothing_reads_is_refused_of_a_sweep_and_told_of_one_run(capsys) -> None:
    """One run may be of a sweep whose others read it: its own command goes on with it."""
    typed = ["experiment=reasoning", "softmax=hard", "norm_softmax.statistic=var"]
    sentence = "norm_softmax.statistic=var does nothing: it is a default for softmax=norm_softmax, which is not chosen"
    for tells in (RunSpec.compose, check_overrides):
        tells(typed)
        assert capsys.readouterr().err.startswith(sentence)
    with pytest.raises(LabError, match=f"^{re.escape(sentence)}"):
        planned_runs(typed)


def test_a_default_for_a_config_that_some_run_chooses_is_taken() -> None:
    task = "experiment=reasoning"
    check_overrides([task, "softmax=norm_softmax", "norm_softmax.statistic=var"])
    check_overrides([task, "softmax=hard", "~norm_softmax"])
    check_overrides(["-m", task, "softmax=softmax,norm_softmax", "norm_softmax.statistic=var,std"])
    check_overrides(["-m", "experiment=main_task", "+row=vit,norm_softmax", "+norm_softmax.tau=1"])


def test_a_key_that_a_config_of_ones_own_refers_to_is_read(tmp_path: Path, capsys) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [reasoning, _self_]\noptim: {lr: '${rate}'}\n"
    )
    check_overrides([f"--config-dir={tmp_path}", "experiment=mine", "+rate=0.01"])
    check_overrides(["+paths.mine=here", "paths.data='${paths.mine}/data'", "++diagnostics.every_n_epochs=3"])
    check_overrides(["+paths.mine=here", "paths.data='${.mine}/data'"])
    check_overrides(["+paths.mine=here", "hydra.sweep.dir='${paths.mine}'"])
    with pytest.raises(SystemExit, match="1"):
        check_overrides([f"--config-dir={tmp_path}", "experiment=mine", "+rate=0.01", "+rates=0.01"])
    assert "+rates=0.01: nothing reads rates" in capsys.readouterr().err


def test_a_sweep_that_sets_what_no_name_tells_is_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "sweep").mkdir()
    params = "hydra: {sweeper: {params: {softmax: 'softmax,norm_softmax'}}}\n"
    for name, further in (("good", "seeds: 2\n"), ("bad", "trainer: {max_epochs: 2}\n")):
        (tmp_path / "sweep" / f"{name}.yaml").write_text(f"# @package _global_\n{further}{params}")
    check_overrides([f"--config-dir={tmp_path}", "-m", "+sweep=good"])
    with pytest.raises(SystemExit, match="1"):
        check_overrides([f"--config-dir={tmp_path}", "-m", "+sweep=bad"])
    assert "sweep/bad sets trainer, which no run's name would show" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trainr: {max_epochs: 20}", "a config file sets it, but nothing reads trainr; did you mean 'trainer'?"),
        ("diagnostics: {every_n_epoch: 7}", "nothing reads diagnostics.every_n_epoch; did you mean 'every_n_epochs'?"),
        ("checkpoints: {every_minute: 1}", "nothing reads checkpoints.every_minute; did you mean 'every_minutes'?"),
        ("trainer: {max", "expected ',' or '}': this is no YAML"),
    ],
)
def test_a_mistake_in_a_file_of_ones_own_is_told(text: str, words: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    file.write_text(f"# @package _global_\ndefaults: [reasoning_small, _self_]\n{text}\n")
    with pytest.raises(SystemExit, match="1"):
        check_overrides([f"--config-dir={tmp_path}", "experiment=mine"])
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "trainer: {max_epochs: 20}",
            "nothing reads what experiment/mine.yaml sets: its first line must be # @package",
        ),
        (
            "# @package _global_\ndefaults: [{softmax: norm_softmax}, _self_]",
            "mine.yaml looks for softmax/norm_softmax beside itself: write - override /softmax: norm_softmax",
        ),
        (
            "# @package _global_\ndefaults: [{override softmax: norm_softmax}, _self_]",
            "a defaults list overrides softmax: write - override /softmax: NAME, with the slash",
        ),
        (
            "defaults: [{override /softmax: norm_softmax}, _self_]\n# @package _global_",
            "experiment/mine.yaml overrides softmax: '# @package _global_' has to be its first line",
        ),
    ],
)
def test_a_forgotten_line_or_slash_is_told(text: str, words: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(f"{text}\n")
    with pytest.raises(SystemExit, match="1"):
        check_overrides([f"--config-dir={tmp_path}", "experiment=mine"])
    assert words in capsys.readouterr().err


def test_a_config_that_the_labs_own_hides_is_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "softmax").mkdir()
    (tmp_path / "softmax" / "norm_softmax.yaml").write_text((CONFIGS / "softmax" / "norm_softmax.yaml").read_text())
    check_overrides([f"--config-dir={tmp_path}"])
    with pytest.raises(SystemExit, match="1"):
        check_overrides([f"--config-dir={tmp_path}", "softmax=norm_softmax"])
    assert "norm_softmax.yaml has the name of one of the lab's configs, which is taken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("softmax/schedule/mine.yaml", "softmax.schedule has a schedule within it: '# @package softmax' has to be the"),
        ("softmax/normaliser/mine.yaml", "softmax.normaliser has a normaliser within it: '# @package softmax' has to"),
        ("softmax/mine.yml", "softmax/mine.yml has to end with .yaml"),
        ("callbacks/mine.yml", "callbacks/mine.yml has to end with .yaml"),
        ("experiment/mine.yml", "experiment/mine.yml has to end with .yaml"),
    ],
)
def test_a_file_without_its_package_or_with_another_ending_is_told(file: str, words: str, tmp_path, capsys) -> None:
    group = file.rpartition("/")[0]
    (tmp_path / group).mkdir(parents=True)
    (tmp_path / file).write_text(f"{Path(group).name}:\n  _target_: lab.attention.schedule.HeatTreatment\n")
    chosen = "[eureka,mine]" if group == "callbacks" else "mine"
    with pytest.raises(SystemExit, match="1"):
        check_overrides([f"--config-dir={tmp_path}", f"{group}={chosen}"])
    assert words in capsys.readouterr().err


def test_a_callback_that_hides_one_of_the_labs_is_refused(tmp_path: Path, capsys) -> None:
    """By its key or the name of its file, unless the file says that it changes the lab's."""
    (tmp_path / "callbacks").mkdir()
    own = "temperatures: {_target_: lightning.pytorch.callbacks.Timer}\n"
    for name, text in {
        "temps": own,
        "changed": f"defaults: [progress, _self_]\n{own.replace('Timer', 'DeviceStatsMonitor')}",
        "often": "temperatures: {every_n_epochs: 2}\n",
        "mine": own.replace("temperatures", "mine"),
        "eureka": own.replace("temperatures", "eureka"),
        "nothing": "temperatures: null\n",
        "list": "[temperatures]\n",
    }.items():
        (tmp_path / "callbacks" / f"{name}.yaml").write_text(text)
    # Where nothing of the lab is chosen, nothing of it is hidden.
    for chosen in ("[default,often]", "[default,mine]", "changed", "temps", "[default,nothing]"):
        check_overrides([f"--config-dir={tmp_path}", f"callbacks={chosen}"])
    for name, words in {
        "temps": "temps.yaml: its key temperatures is that of one of the lab's callbacks, which would not be made",
        "eureka": "eureka.yaml has the name of one of the lab's configs",
    }.items():
        with pytest.raises(SystemExit, match="1"):
            check_overrides([f"--config-dir={tmp_path}", f"callbacks=[default,{name}]"])
        assert words in capsys.readouterr().err


def test_two_folders_with_one_config_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "softmax").mkdir(parents=True)
        (tmp_path / name / "softmax" / "mine.yaml").write_text((CONFIGS / "softmax" / "softmax.yaml").read_text())
    both = [f"--config-dir={tmp_path}/one", f"hydra.searchpath=[file://{tmp_path}/two]"]
    check_overrides(both)
    with pytest.raises(SystemExit, match="1"):
        check_overrides([*both, "softmax=mine"])
    assert "have one name, and only one is taken: give one another name" in capsys.readouterr().err
    with pytest.raises(LabError, match="--config-dir is given twice: give one folder"):
        check_overrides(["--config-dir", f"{tmp_path}/one", f"--config-dir={tmp_path}/two"])


def test_the_labs_own_folder_of_configs_hides_nothing(capsys) -> None:
    check_overrides([f"--config-dir={CONFIGS.resolve()}", "softmax=norm_softmax"])
    assert not capsys.readouterr().err
