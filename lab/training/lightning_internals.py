"""Uses private parts of Lightning and PyTorch where they have no public API: one small function for each.

Nothing else in ``lab/training`` but ``onednn.py`` uses their private names; those that attention calls stand in
``lab/attention/torch_internals.py``. Once a new version removes one or changes its meaning,
``tests/lab/training/test_lightning_internals.py`` fails with the name of the function here.
"""

from __future__ import annotations

import signal
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.loops.fit_loop import RestartStage
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.pytorch.utilities.rank_zero import rank_zero_only


def process_rank() -> int:
    """Rank of this process among those that train one run, from 0 on; known before there is a trainer.

    Lightning stores it on the decorator ``rank_zero_only``: from the environment at import, later from the trainer.
    """
    return int(getattr(rank_zero_only, "rank", 0) or 0)


def train_as_rank_0() -> None:
    """Makes this process rank 0 of the run that it trains, whatever rank its environment names."""
    vars(rank_zero_only)["rank"] = 0


def attached_trainer(module: LightningModule) -> Trainer | None:
    """Trainer of ``module``; None if it has none, where Lightning would raise an exception."""
    try:
        return module.trainer
    except RuntimeError:
        return None


def end_other_ranks(trainer: Trainer) -> None:
    """Kills the processes that Lightning has started for the other ranks of a run, if it has."""
    launcher = trainer.strategy.launcher
    if isinstance(launcher, _SubprocessScriptLauncher):
        launcher.kill(signal.SIGKILL)


def end_a_finished_epoch(trainer: Trainer) -> None:
    """Lets a run resumed at the end of an epoch begin with the next one; call it as training starts.

    Under ``trainer.max_steps`` Lightning would end that epoch once more, without a batch, and count it twice. Without
    ``max_steps`` Lightning itself does what this function does.
    """
    # Any, since Lightning's types lack half of these attributes.
    loop: Any = trainer.fit_loop
    parent: Any = _Loop
    if not loop.restarted_on_epoch_end:
        return
    parent.restarting.fset(loop, False)
    loop._restart_stage = RestartStage.RESUMED_ON_EPOCH_END
    loop.epoch_loop.update_restart_stage()
    if loop.epoch_progress.total.completed < loop.epoch_progress.total.processed:
        loop.epoch_progress.increment_completed()


def set_up_validation(trainer: Trainer) -> None:
    """Makes the validation's loaders as training starts: Lightning does so only in the first epoch that validates."""
    trainer.fit_loop.epoch_loop.val_loop.setup_data()


def processor_has_bf16() -> bool:
    """Tells whether this processor has bfloat16 instructions; without, it emulates bfloat16, up to 200 times slower.

    True where this build of PyTorch cannot tell.
    """
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is None or bool(supported())


def recompute_in_backward(wanted: bool) -> None:
    """Makes torch.compile recompute cheap intermediate results in the backward pass instead of storing them, or not.

    Attention on a CPU and operators of other libraries count as cheap for it, and are stored all the same.
    """
    # Take a second, and few runs compile.
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.custom_graph_pass import CustomGraphPass
    from torch.utils.checkpoint import CheckpointPolicy

    class StoreWhatIsSlow(CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            for node in graph.nodes:
                if isinstance(node.target, torch._ops.OpOverload) and (
                    node.target.namespace not in ("aten", "prims")
                    or node.target is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
                ):
                    node.meta["recompute"] = CheckpointPolicy.MUST_SAVE

        def uuid(self) -> str:
            return "eureka_lab stores attention and linear layers"  # what is compiled is kept by this name

    torch._functorch.config.aggressive_recomputation = wanted
    if wanted:
        torch._inductor.config.joint_custom_pre_pass = StoreWhatIsSlow()


def allow_recompiling(limit: int) -> None:
    """Lets torch.compile compile one function for at least ``limit`` shapes before it falls back to eager mode."""
    import torch._dynamo  # takes a second, and few runs compile

    torch._dynamo.config.recompile_limit = max(limit, torch._dynamo.config.recompile_limit)
