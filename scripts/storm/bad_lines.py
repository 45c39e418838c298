"""Bad command lines, each with what the sentence that refuses it must name."""

from __future__ import annotations

from typing import NamedTuple


class BadLine(NamedTuple):
    """A command line that must be refused in one sentence.

    Attributes:
        module: of the command, as after ``python -m``.
        arguments: of the command line.
        named: what the sentence must hold.
    """

    module: str
    arguments: tuple[str, ...]
    named: str


def _lines(module: str, rows: str) -> list[BadLine]:
    """Lines of a command, one per row: arguments separated by blanks, then "|" and what the sentence must hold."""
    parted = [row.rpartition("|") for row in rows.strip().splitlines()]
    return [BadLine(module, tuple(arguments.split()), named.strip()) for arguments, _, named in parted]


_TRAIN = """
trainer.devices=99 | trainer.devices
trainer.devices=0 | trainer.devices
trainer.devices=foo | trainer.devices
trainer.devices=1.5 | trainer.devices
trainer.devices=[] | trainer.devices
trainer.devices=null | trainer.devices
trainer.num_nodes=0 | trainer.num_nodes
trainer.num_nodes=two | trainer.num_nodes
trainer.accelerator=foo | trainer.accelerator
trainer.accelerator=null | trainer.accelerator
trainer.strategy=foo | trainer.strategy
trainer.precision=foo | bf16-mixed
trainer.precision=8 | 32-true
trainer.max_epochs=0 | trainer.max_epochs
trainer.max_epochs=null | trainer.max_epochs
trainer.max_epochs=1.5 | trainer.max_epochs
trainer.max_epochs=-1 | trainer.max_epochs
trainer.max_steps=0 | trainer.max_steps
trainer.max_steps=-2 | trainer.max_steps
trainer.max_time=abc | trainer.max_time
trainer.max_time=5 | trainer.max_time
trainer.max_time=1:2:3 | trainer.max_time
trainer.accumulate_grad_batches=0 | trainer.accumulate_grad_batches
trainer.accumulate_grad_batches=-3 | trainer.accumulate_grad_batches
trainer.check_val_every_n_epoch=0 | trainer.check_val_every_n_epoch
trainer.check_val_every_n_epoch=null | trainer.check_val_every_n_epoch
trainer.limit_train_batches=0 | trainer.limit_train_batches
trainer.limit_train_batches=0.0 | trainer.limit_train_batches
trainer.limit_train_batches=-1 | trainer.limit_train_batches
trainer.limit_val_batches=0 | trainer.limit_val_batches
trainer.limit_val_batches=2.5 | trainer.limit_val_batches
trainer.log_every_n_steps=-1 | trainer.log_every_n_steps
trainer.num_sanity_val_steps=-5 | trainer.num_sanity_val_steps
trainer.deterministic=foo | trainer.deterministic
trainer.use_distributed_sampler=maybe | trainer.use_distributed_sampler
trainer.epochs=3 | max_epochs
trainer.foo=1 | foo
+trainer.foo=1 | trainer.foo
+trainer.gradient_clip_val=-1 | trainer.gradient_clip_val
+trainer.gradient_clip_algorithm=foo | trainer.gradient_clip_algorithm
+trainer.val_check_interval=0 | trainer.val_check_interval
+trainer.overfit_batches=-1 | trainer.overfit_batches
+trainer.profiler=foo | trainer.profiler
+trainer.callbacks=3 | trainer.callbacks
+trainer.logger=true | trainer.logger
+trainer.min_epochs=0 | trainer.min_epochs
trainer=foo | trainer=foo
trainer=gpu trainer.devices=0 | trainer.devices
seed=-1 | seed=-1
seed=1180591620717411303424 | seed
seed=4294967296 | seed
seed=null | seed
seed=1.5 | seed
seed= | seed
seed=one | seed
seed=true | seed
seed=[0,1] | seed
seed=??? | seed
seed=${foo} | seed
seed=${seed} | seed
seed=0,1 | seed=0,1
seeds=true | seeds
seeds=0 | seeds
seeds=-1 | seeds
seeds=[] | seeds
seeds=[0,0] | seeds
seeds=[-1] | seeds
seeds=[a] | seeds
seeds=1000000 | seeds
seeds=2.5 | seeds
threads=0 | threads
threads=-1 | threads
threads=100000 | threads
threads=all | threads
force=no | force
force=1 | force
compile=off | compile
trial=3 | trial
paths.runs=null | paths.runs
paths.runs= | paths.runs
paths.runs=3 | paths.runs
paths.data=null | paths.data
paths=null | paths=null
paths=foo | paths=foo
checkpoints.keep=0 | checkpoints.keep
checkpoints.keep=-2 | checkpoints.keep
checkpoints.every_minutes=0 | checkpoints.every_minutes
checkpoints.every_minutes=inf | checkpoints.every_minutes
checkpoints.every_n_steps=0 | checkpoints.every_n_steps
checkpoints.best=3 | checkpoints.best
checkpoints.foo=1 | foo
diagnostics.every_n_epochs=0 | diagnostics.every_n_epochs
diagnostics.every_n_epochs=x | diagnostics.every_n_epochs
diagnostics.pictures_every_n_epochs=-1 | diagnostics.pictures_every_n_epochs
~optim | optim
~data | data
~model | model
~softmax | softmax
~trainer | trainer
~paths | paths
~seed | seed
~force | force
~compile | compile
~checkpoints | checkpoints
~checkpoints.best | checkpoints.best
~diagnostics | diagnostics
~paths.runs | paths.runs
~paths.data | paths.data
~optim.lr | optim.lr
~optim._target_ | optim._target_
~model._target_ | model._target_
~data.task | data.task
~data.source | data.source
~data.source.digits | digits
~trainer.devices | trainer.devices
~trainer.precision | trainer.precision
~trainer.max_epochs | trainer.max_epochs
~nothing | nothing
~optim.nothing | nothing
optim=foo | optim=foo
optim=null | optim=null
optim.lr=inf | optim.lr
optim.lr=nan | optim.lr
optim.lr=0 | optim.lr
optim.lr=-1 | optim.lr
optim.lr=1e400 | optim.lr
optim.lr=high | optim.lr
optim.lr=null | optim.lr
optim.min_lr=-1 | optim.min_lr
optim.warmup_epochs=-1 | optim.warmup_epochs
optim.warmup_epochs=1.5 | optim.warmup_epochs
optim.weight_decay=-1 | optim.weight_decay
optim.label_smoothing=1 | optim.label_smoothing
optim.lr_reference_batch=0 | optim.lr_reference_batch
optim.schedule=foo | optim.schedule
optim.schedule=plateau | optim.schedule
optim.schedule=null | optim.schedule
optim.name=foo | optim.name
optim.name=3 | optim.name
+optim.options.foo=1 | optim.options
optim.options.betas=3 | optim.options
optim.options.betas=[2,2] | optim.options
optim.options=3 | optim.options
optim.options=null | optim.options
optim.learning_rate=1 | optim.lr
data=foo | data=foo
data=null | data=null
data/source=foo | data/source=foo
data/task=foo | data/task=foo
data.batch_size=1000000000 | data.batch_size
data.batch_size=100000 | data.batch_size
data.batch_size=0 | data.batch_size
data.batch_size=half | data.batch_size
data.epoch_size=0 | data.epoch_size
data.epoch_size=3 | data.epoch_size
data.validation_size=-1 | data.validation_size
data.validation_size=1000000000000 | data.validation_size
data.tile_size=0 | data.tile_size
data.tile_size=1000000 | data.tile_size
data.seed=a | data.seed
data.task.digits=[1,1] | data.task.digits
data.task.digits=3 | data.task.digits
data.task._target_=foo | data.task._target_
data.source.digits.name=MNISTT | MNISTT
data.source.digits.download=please | data.source.digits.download
data._target_=builtins.dict | data
data.workers=3 | workers
experiment=foo | experiment=foo
experiment= | experiment=
experiment=reasoning data.numbers=1000 | data.numbers
experiment=reasoning data.numbers=1 | data.numbers
experiment=reasoning data.train_share=0 | data.train_share
experiment=reasoning data.train_share=1 | data.train_share
experiment=max_retrieval data.smallest=20 | data.smallest
experiment=max_retrieval data.classes=0 | data.classes
model=foo | model=foo
model=null | model=null
model.depth=0 | model.depth
model.depth=100000 | model.depth
model.heads=-1 | model.heads
model.head_dim=1.5 | model.head_dim
model.drop_path_rate=5 | model.drop_path_rate
model.init=foo | model.init
model._target_=foo.Bar | model._target_
softmax=foo | softmax=foo
softmax=norm_softmx | norm_softmax
softmax=null | softmax=null
softmax= | softmax=
softmax=[ | softmax=[
softmax=softmax,norm_softmax | softmax=softmax,norm_softmax
softmax.tau=-1 | softmax.tau
softmax.tau= | softmax.tau
softmax.tau=abc | softmax.tau
softmax.tua=1 | tau
softmax.schedule=3 | softmax.schedule
softmax=norm_softmax softmax.statistic=foo | softmax.statistic
softmax=norm_softmax softmax.over=foo | softmax.over
softmax/schedule=foo | softmax/schedule=foo
softmax/schedule=heat_treatment softmax.schedule.share=2 | softmax.schedule.share
intervention=foo | intervention=foo
intervention=grad_scaling intervention.per=foo | intervention.per
logger=foo | logger=foo
debug=foo | debug=foo
callbacks=foo | callbacks=foo
callbacks=[foo,bar] | callbacks=bar
callbacks={a:1} | callbacks={a:1}
callbacks=null | callbacks=null
callbacks.nothing.x=1 | nothing
+callbacks.mine=3 | callbacks.mine
callbacks.eureka.threshold=1 | callbacks.eureka.threshold
callbacks.eureka.stop_after=-1 | callbacks.eureka.stop_after
callbacks.gradient_norms.every_n_steps=0 | callbacks.gradient_norms.every_n_steps
callbacks.progress.refresh_per_second=-1 | callbacks.progress.refresh_per_second
callbacks=[default,linear_probes] callbacks.linear_probes.held_out_share=1 | callbacks.linear_probes.held_out_share
callbacks=[default,linear_probes] callbacks.linear_probes.quantities=[foo] | callbacks.linear_probes.quantities
callbacks=[default,code_length] callbacks.code_length.portions=[2] | callbacks.code_length.portions
row=vit | +row=vit
+row=foo | row=foo
+sweep=foo | sweep=foo
+sweep=table_1 | +sweep=table_1
foo | foo
a=[1, | a=[1,
a={b | a={b
= | '='
=3 | =3
--foo | --foo
nothing=3 | nothing
+softmax=norm_softmax | softmax
hydra.foo=1 | foo
hydra.run.dir=null | hydra.run.dir
hydra/launcher=foo | hydra/launcher=foo
hydra/launcher=joblib | hydra/launcher=joblib
hydra/sweeper=foo | hydra/sweeper=foo
hydra.launcher.n_jobs=3 | hydra.launcher.n_jobs
--config-dir nowhere seed=1 | nowhere
-m softmax=softmax,foo | softmax=foo
-m softmax=softmax seed= | seed
-m seed=0,1,-1 | seed=-1
-m seed=range(-1,3) | seed=-1
-m seeds=2,true | seeds
-m optim.lr=1e-3,inf | optim.lr
-m optim.lr=1e-3,0 | optim.lr
-m experiment=reasoning,foo | experiment=foo
-m model=compact_vit,resnet9 model.heads=2,4 | heads
-m trainer.precision=32-true,foo | trainer.precision
-m data.batch_size=32,1000000000 | data.batch_size
-m +sweep=table_1 seed=a | seed
-m +sweep=table_1 trainer.max_epochs=0 | trainer.max_epochs
-m hydra/launcher=joblib hydra.launcher.n_jobs=foo seed=0,1 | hydra.launcher.n_jobs
-m foo | foo
-m seed=0,1 --cfg hydra | --cfg
"""

_INSPECT = """
run=nowhere | diagnostics=
diagnostics=[attention_maps] | run=
run=nowhere diagnostics=[] | diagnostics
run=nowhere diagnostics=null | diagnostics
run=nowhere diagnostics=3 | diagnostics
run=nowhere diagnostics=[ | diagnostics
run=nowhere diagnostics=[attention_maps] | nowhere
run=nowhere diagnostics=[attention_maps] foo | foo
run=nowhere diagnostics=[attention_maps] force=maybe | force
run=nowhere diagnostics=[attention_maps] threads=0 | threads
run=nowhere diagnostics=[attention_maps] threads=100000 | threads
run=nowhere diagnostics=[attention_maps] threads=all | threads
run=nowhere diagnostics=[attention_maps] device=foo | nowhere
run=nowhere diagnostics=[attention_maps] out=/etc/hostname | nowhere
run=nowhere diagnostics=[attention_maps] --config-dir elsewhere | elsewhere
"""

_REPORT = """
nowhere | nowhere
. | no runs below
. --against foo | foo
. --confidence 2 | --confidence
. --confidence a | --confidence
. --confidence nan | --confidence
. --pictures -1 | --pictures
. --pictures inf | --pictures
. --out /etc/hostname | /etc/hostname
. --foo | --foo
"""

_STATUS = """
nowhere | nowhere
. --watch 0 | --watch
. --watch -1 | --watch
. --watch nan | --watch
. --watch a | --watch
. more | more
--foo | --foo
--plan softmax=foo | softmax=foo
--plan foo | foo
--plan seed=0,-1 | seed=-1
--plan seed= | seed
--plan paths.runs=null | paths.runs
--plan +sweep=foo | sweep=foo
"""

_BENCH = """
--foo | --foo
--only foo | --only
--only | --only
--softmax foo | --softmax foo
--softmax foo.Bar | --softmax foo.Bar
--precision foo | --precision
--batch-size 0 | --batch-size
--batch-size 1000000000 | --batch-size
--batch-size a | --batch-size
--threads 0 | --threads
--threads 100000 | --threads
--threads a | --threads
--device foo | --device
--seconds-per-measurement -1 | --seconds-per-measurement
--seconds-per-measurement nan | --seconds-per-measurement
--seconds-per-measurement inf | --seconds-per-measurement
--out /etc/hostname | /etc/hostname
--out /etc/hostname/x | --out
"""

BAD_LINES: list[BadLine] = [
    *_lines("lab.train", _TRAIN),
    *_lines("lab.inspect", _INSPECT),
    *_lines("lab.report", _REPORT),
    *_lines("lab.status", _STATUS),
    *_lines("lab.bench", _BENCH),
]
