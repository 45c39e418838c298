"""What the lab takes from Lightning and PyTorch that they do not promise: each test is named after what has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch._dynamo
import torch._functorch.config
import torch._inductor.config
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, Timer
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from marks import needs_compiler
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses import FakeTensorMode
from torch.utils.data import DataLoader

from lab.console import LabError, tell
from lab.datasets.loading import step_reached
from lab.runs.outcome import Ending
from lab.training import lightning_internals as internals
from lab.training.onednn import product
from lab.training.seeds.callbacks import EachSeed
from lab.training.seeds.module import SeedTrainer

# Puts back which results a compiled backward pass stores.
STORING = torch._inductor.config.patch(joint_custom_pre_pass=None)
# Of a callback, what seeds do without: other ways to use a trainer, and what a seed keeps by itself.
NOT_HANDED_ON = {"setup", "teardown", "on_save_checkpoint", "on_load_checkpoint"}


class Line(L.LightningModule):
    """The least that trains; notes what it sees on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.reached: list[tuple[int, int]] = []
        self.saved: list[set[str]] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.reached.append((step_reached(self.trainer), batch_idx))
        return (self.weight * batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.saved.append(set(checkpoint))
        checkpoint["state_dict"] = {"changed": torch.zeros(1)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[L.Trainer, Line]:
    trainer = L.Trainer(
        default_root_dir=tmp_path_factory.mktemp("trained"),
        accelerator="cpu",
        max_epochs=1,
        max_time={"minutes": 5},
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Line()
    trainer.fit(module, DataLoader(torch.ones(3, 1)))
    return trainer, module


def test_process_rank(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """The decorator knows the rank; lab.console looks there as well."""
    assert internals.process_rank() == vars(rank_zero_only)["rank"] == 0
    tell("one")
    monkeypatch.setattr(rank_zero_only, "rank", 1)
    assert internals.process_rank() == 1
    tell("two")
    assert capsys.readouterr().err == "one\n"


def test_attached_trainer(trained: tuple[L.Trainer, Line]) -> None:
    assert internals.attached_trainer(Line()) is None
    assert internals.attached_trainer(trained[1]) is trained[0]


def test_processor_has_bf16() -> None:
    assert torch.ops.mkldnn._is_mkldnn_bf16_supported() in (True, False)
    assert internals.processor_has_bf16() == torch.ops.mkldnn._is_mkldnn_bf16_supported()


def test_recompute_in_backward() -> None:
    # The configs' own way: after pytest's monkeypatch they would deny the option.
    with torch._functorch.config.patch(aggressive_recomputation=False), STORING:
        internals.recompute_in_backward(True)
        assert torch._functorch.config.aggressive_recomputation is True
        internals.recompute_in_backward(False)
        assert torch._functorch.config.aggressive_recomputation is False


@pytest.mark.parametrize("wanted", [True, False])
def test_cudnn_attention_is_computed_twice_only_where_all_is_recomputed(wanted: bool) -> None:
    """Why a GPU keeps torch's default: in aggressive recomputation it counts as cheap."""
    attention = torch.ops.aten._scaled_dot_product_cudnn_attention
    seen: list[list[object]] = []

    def compiled(graph: torch.fx.GraphModule, inputs: object) -> Any:
        seen.append([node.target for node in graph.graph.nodes])
        return make_boxed_func(graph.forward)

    def attended(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ weight).view(2, 9, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        z = attention(q, k, v, None, True, 0.0, False, False, scale=1.0)[0]
        return z.transpose(1, 2).flatten(2) @ weight.T[:16]

    with torch._functorch.config.patch(aggressive_recomputation=False), STORING, FakeTensorMode():
        internals.recompute_in_backward(wanted)
        cut = min_cut_rematerialization_partition
        traced = aot_function(attended, compiled, compiled, partition_fn=cut)
        traced(torch.randn(2, 9, 16, requires_grad=True), torch.randn(16, 48, requires_grad=True)).sum().backward()
    forward, backward = seen
    assert attention.default in forward and (attention.default in backward) == wanted


@needs_compiler
def test_what_is_slow_on_a_cpu_is_computed_once() -> None:
    """In aggressive recomputation these count as cheap, unless they are marked."""
    slow = (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default, torch.ops.eureka_lab.linear.default)
    seen: list[list[object]] = []
    cut = min_cut_rematerialization_partition

    def partition(graph: torch.fx.GraphModule, *given: Any, **options: Any) -> Any:
        parts = cut(graph, *given, **options)
        seen.extend([node.target for node in part.graph.nodes] for part in parts)
        return parts

    def attended(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        q, k, v = product(x, weight, None).view(2, 20, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        return product(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), weight[:16], None)

    given = (torch.randn(2, 20, 16, requires_grad=True), torch.randn(48, 16, requires_grad=True))
    with (
        torch._functorch.config.patch(aggressive_recomputation=False, enable_autograd_cache=False),
        STORING,
        pytest.MonkeyPatch.context() as patched,
    ):
        internals.recompute_in_backward(True)
        patched.setattr("torch._inductor.compile_fx.min_cut_rematerialization_partition", partition)
        torch.compile(attended)(*given).sum().backward()
    forward, backward = seen
    assert [forward.count(one) for one in slow] == [1, 2]
    # Linear layers have one product for the input, and over_rows for the weight.
    assert [backward.count(one) for one in slow] == [0, 2]


def test_allow_recompiling() -> None:
    with torch._dynamo.config.patch(recompile_limit=8):
        internals.allow_recompiling(256)
        assert torch._dynamo.config.recompile_limit == 256
        internals.allow_recompiling(16)
        assert torch._dynamo.config.recompile_limit == 256


def test_on_save_checkpoint_says_what_is_saved(trained: tuple[L.Trainer, Line], tmp_path: Path) -> None:
    """A seed's checkpoint is made there: after all else is in it, and before it is written."""
    trainer, module = trained
    module.saved.clear()
    trainer.save_checkpoint(tmp_path / "whole.ckpt", False)
    trainer.save_checkpoint(tmp_path / "weights.ckpt", True)
    whole, weights = module.saved
    assert {"state_dict", "loops", "epoch", "global_step"} <= weights
    assert whole - weights == {"callbacks", "optimizer_states", "lr_schedulers"}
    for name in ("whole", "weights"):
        saved = torch.load(tmp_path / f"{name}.ckpt", weights_only=True)
        assert set(saved["state_dict"]) == {"changed"}
    assert len(torch.load(tmp_path / "whole.ckpt", weights_only=True)["optimizer_states"][0]["state"]) == 1


def test_the_timer_of_max_time_keeps_its_state_by_its_name(trained: tuple[L.Trainer, Line], tmp_path: Path) -> None:
    trained[0].save_checkpoint(tmp_path / "whole.ckpt")
    states = torch.load(tmp_path / "whole.ckpt", weights_only=True)["callbacks"]
    assert states[Timer.__qualname__]["time_elapsed"]["train"] > 0


def test_step_reached_counts_the_batches_of_the_epoch(trained: tuple[L.Trainer, Line]) -> None:
    assert trained[1].reached == [(batch_idx + 1, batch_idx) for batch_idx in range(3)]


def test_every_hook_of_training_is_handed_on_to_seeds() -> None:
    """A hook that Lightning adds is to be handed on, or named above."""
    hooks = {name for name in vars(Callback) if name.startswith(("on_", "setup", "teardown"))}
    other = {name for name in hooks if "_test" in name or "_predict" in name}
    assert hooks - other - NOT_HANDED_ON == {name for name in vars(EachSeed) if name.startswith("on_")}


def test_what_a_seed_has_of_its_own_is_what_a_trainer_has(trained: tuple[L.Trainer, Line]) -> None:
    """Else a callback would ask the real trainer by a new name, and be answered for all seeds together."""
    own = {
        "callback_metrics",
        "callbacks",
        "current_epoch",
        "datamodule",
        "lightning_module",
        "logger",
        "loggers",
        "save_checkpoint",
        "should_stop",
    }
    assert not [name for name in own if not hasattr(trained[0], name)]
    # Of a real trainer, all callbacks are its own.
    assert {*own, "callbacks_of_all_seeds"} >= {name for name in vars(SeedTrainer) if not name.startswith("_")}


def test_a_run_that_slurm_ends_is_stopped() -> None:
    ending = Ending()
    with pytest.raises(SIGTERMException), ending.told():
        raise SIGTERMException
    assert (ending.status, ending.reason) == ("stopped", None)


def test_a_file_that_may_not_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    ending = Ending()
    with pytest.raises(LabError, match=f"Is a directory: '{tmp_path}'"), ending.told():
        tmp_path.read_text()
    told = str(ending.reason)
    assert ending.status == "failed" and told.startswith(
        f"IsADirectoryError: [Errno 21] Is a directory: '{tmp_path}' ("
    )


def test_end_a_finished_epoch() -> None:
    trainer = L.Trainer(max_steps=5, logger=False, accelerator="cpu", enable_checkpointing=False, barebones=True)
    loop: Any = trainer.fit_loop
    progress = loop.epoch_progress
    progress.total.ready = progress.total.started = progress.total.processed = 1
    progress.current.ready = progress.current.started = progress.current.processed = 1
    loop.restarting = True
    loop.update_restart_stage()
    assert loop.restarted_on_epoch_end, "Lightning would end the epoch once more"
    internals.end_a_finished_epoch(trainer)
    assert loop.resumed_on_epoch_end and not loop.restarting and progress.total.completed == 1
