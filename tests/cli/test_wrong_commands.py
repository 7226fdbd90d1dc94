"""Wrong commands: each is told in one or two lines that name what was wrong, and leaves nothing."""

from pathlib import Path

import pytest
from forked import Commands, runs, told
from helpers import sampled

OPTIONS = {
    # what is given: what the answer names
    "clip=norm clip.max_norm=-1": "clip.max_norm=-1.0: must be > 0",
    "trainer.threads=0": "trainer.threads=0: must be null or in [1, 1024]",
    "loss.reduction=max": "loss.reduction=max: must be one of mean, sum",
    "accumulation.steps=0": "accumulation.steps=0: must be >= 1",
    "precision=fp17": "precision=fp17: did you mean fp16? It must be one of bf16, fp16, ",
    "data=imagenet": "data=imagenet: must be one of adding, cifar10, custom, digits",
    "data=digts": "mnist, synthetic, text, tokens; your own: data=custom data.target=",
    "lr=1": "lr: no such field; did you mean optimizer.lr?",
    "+epochs=1": "epochs=1: no such field; did you mean trainer.epochs?",
    "batch_size=1": "batch_size: no such field; did you mean data.batch_size?",
    "learning_rate=1": "learning_rate: no such field; did you mean optimizer.lr?",
    "max_norm=1": "max_norm: no such field; did you mean clip.max_norm (with clip=norm or clip=per_layer)?",
    "optimizer.learning_rate=1": "optimizer.learning_rate: no such field (did you mean lr?); optimizer has lr,",
    "mode=online": "mode: no such field; did you mean logger.wandb.mode?",
    "model.layers=abc": "model.layers=abc: must be a whole number",
    "model.layers=null": "model.layers=null: must not be null",
    "model=transformer data.path=/nope": "data.path=/nope: there is no such file or folder",
    "init_from=/nope": "init_from=/nope: no such file",
    "resume=/nope": "resume=/nope: must be the folder of a run",
    "-m resume=/nope": "resume=/nope: one run at a time",
    "model=custom model.target=nope:Net": "model.target=nope:Net: there is no module nope",
    "model=custom": "model.target=: must be of the form",
    "sed=1": "sed: no such field (did you mean seed?)",
    "clp=norm": "clp: no such field (did you mean clip?)",
    "clip=norm clip.maxnorm=1": "clip.maxnorm: no such field (did you mean max_norm?); clip has max_norm",
    "diagnosis.vanishin.ratio=1": "diagnosis.vanishin.ratio: no such field (did you mean vanishing?); diagnosis has",
    "+foo=1": "foo=1: no such field; gradlab has model,",
    "clip=norm +clip.foo=1": "clip.foo=1: no such field; there are max_norm",
    "+experiment=nope": "experiment=nope: must be one of ",
    "+experiment=explodin": "experiment=explodin: did you mean exploding? It must be one of dead_relu,",
    "experiment=vanishing": "experiment: is appended, so it needs a plus: +experiment=",
    "expect=foo": "expect=foo: must be null, any, or one or a list of healthy,",
    "expect=[healthy,foo]": "must be null, any, or one or a list of healthy,",
    "a=[1,": "a=[1,: must be group=option or group.field=value",
    "=3": "=3: must be group=option or group.field=value",
    "seed": "seed: must be group=option or group.field=value",
    "clip=null": "clip=null: must be one of agc,",
    "~clip": "clip=???: must be chosen: none, norm,",
    "clip=norm clip=none": "clip=norm and clip=none: one option of a group can be chosen",
    "clip=norm,none": "clip=norm,none: several values need --multirun",
    "optimizer.lr=1,2": "optimizer.lr=1,2: several values need --multirun",
    "--foo": "--foo: no such flag",
    "--cfg foo": "argument --cfg/-c: invalid choice: 'foo' (choose from",
    "--cfg job -m": "--multirun and --cfg cannot be given together",
    "--resolve": "--resolve goes with --cfg only",
    "--config-dir /nope": "'/nope' not found",
    "--config-name nope": "--config-name nope: there is no such file",
    "--cfg job clip=norm clip.max_norm=-1": "clip.max_norm=-1.0: must be > 0",
    "--cfg=job expect=foo": "expect=foo: must be",
    "--cfg job --package foo": "--package foo",
    "seed=-1": "seed=-1: must be in [0, 2^31)",
    "seed=1.5": "seed=1.5: must be a whole number",
    "trainer.device=gpu": "trainer.device=gpu: must be one of auto, cpu, cuda",
    "data.batch_size=100000": "data.batch_size=100000: must be at most 1437",
    "model=resnet data=text": "model=resnet: needs images, but the data provides tokens",
    "optimizer.lr=nan": "optimizer.lr=nan: must be > 0 and finite",
    "optimizer.lr=inf": "optimizer.lr=inf: must be > 0 and finite",
    "optimizer.lr=": "optimizer.lr=: must be a number",
    "clip=norm clip.max_norm=${nope}": "Interpolation key 'nope' not found",
    "pretrain=nope": "pretrain=nope: must be one of the experiments",
    "-m clip=norm clip.max_norm=1,abc": "clip.max_norm=abc: must be a number",
    "-m clip=norm,foo": "clip=foo: must be one of",
}
REMEDIES = {
    "+remedy=lowr_lr": "remedy=lowr_lr: did you mean lower_lr? It must be one of",
    "+remedy=[clip_norm,lowr_lr]": "did you mean lower_lr?",
    "-m +remedy=none,lowr_lr": "did you mean lower_lr?",
    "+remedy=none,lower_lr": "several values need --multirun",
    "+remedy=3": "+remedy=3: must be one of",
    "+remedy=[]": "+remedy=[]: must be one of",
    "remedy=lower_lr": "it needs a plus: +remedy=",
    "+remedy=longer_warmup": "remedy=longer_warmup: does not apply: the configuration has no schedule.warmup",
    "--cfg job +remedy=longer_warmup": "remedy=longer_warmup: does not apply",
    "+remedy=lower_lr optimizer.lr=-1": "optimizer.lr=-1.0: must be",
}
SWEEPS = {
    "+sweep=lr_max_nrom": "did you mean lr_max_norm? It must be one of depth_init, lr_max_norm, optuna, precision_lr",
    "sweep=seeds": "sweep: is appended, so it needs a plus",
    "+sweep=seeds,depth_init": "+sweep=seeds,depth_init: one sweep at a time",
    "+sweep=seeds --run": "+sweep=seeds: a sweep is not a single run",
    "+sweep=lr_max_norm clip=value": "of the chosen option, but of clip=norm, clip=per_layer",
    "+sweep=depth_init model=resnet": "model=resnet: must be one of sigmoid_mlp, transformer, lstm for this sweep",
    "-m optimizer.lr=logspace(0,1,3)": "both ends must be > 0 and finite",
    "-m optimizer.lr=logspace(1,2,0)": "there must be at least one point",
    "-m optimizer.lr=logspace(1,2)": "missing a required argument: 'num'",
    "optimizer.lr=logspace(1,2,3)": "several values need --multirun",
    "-m seed=range(0,1000000000)": "seed=range(0,1000000000): must hold at most 100,000 values",
    "-m seed=shuffle(range(0,1000000000)) hydra/launcher=vectorized": "must hold at most 100,000 values",
    "hydra/sweeper=boundary seed=range(0,1000000000)": "must hold at most 100,000 values",
    "-m seed=range(0,999) clip.max_norm=range(0,999)": "there would be 998,001 jobs with seed, clip.max_norm",
    "-m optimizer.lr=logspace(1,2,100000000)": "there must be at most 100,000 points",
    "trainer.threads=100000": "trainer.threads=100000: must be null or in [1, 1024]",
    "hydra/launcher=jobib": "hydra/launcher=jobib: did you mean joblib? It must be one of ",
    "-m seed=range(0,0)": "gradlab: seed=range(0,0): must hold a value: there would be no job\n",
    "-m optimizer.lr=1,2 seed=range(0,0) hydra/launcher=vectorized": "seed=range(0,0): must hold a value",
    "hydra/sweeper=boundary seed=range(0,0)": "seed=range(0,0): must hold a value",
    "hydra/sweeper=boundary hydra.sweeper.field=clip.max_norm": "hydra.sweeper.low=null",
    "hydra/sweeper=boundary hydra.sweeper.field=clip.max_nrm hydra.sweeper.low=1": "clip.max_nrm: no such field",
    "hydra/sweeper=boundary hydra.sweeper.tolerance=0.5": "hydra.sweeper.tolerance=0.5",
    "hydra/sweeper=boundary hydra.sweeper.tolerence=2": "did you mean tolerance?",
    "hydra/sweeper=boundary optimizer.lr=1,2": "optimizer.lr=1,2: is what is searched",
    "hydra/sweeper=boundary hydra.sweeper.seeds=[0] seed=1": "hydra.sweeper.seeds=[0]",
    "hydra/sweeper=boundary clip=norms": "clip=norms: did you mean norm? It must be one of",
    "hydra/sweeper=boundary clip=norm,nrom": "nrom",
}
WRONG = OPTIONS | REMEDIES | SWEEPS


@pytest.mark.parametrize("arguments", sampled(WRONG, 3))
def test_wrong_command_is_told_in_two_lines_and_leaves_nothing(
    gradlab: Commands, tmp_path: Path, arguments: str
) -> None:
    assert WRONG[arguments] in told(gradlab(*arguments.split(" "), cwd=tmp_path))
    assert runs(tmp_path) == []
