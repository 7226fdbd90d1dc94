"""Names of PyTorch and of common packages: what a call of a name makes, and what a name alone suggests."""

from __future__ import annotations

import re

OPTIMIZER = re.compile(
    r"^(Fused|Distributed|PagedAdamW|Sparse)?(Adam\w*|SGD\w*|RMSprop\w*|Adagrad|Adadelta|LBFGS|Lion\w*|LAMB|Lamb|NAdam|RAdam"
    r"|Adafactor|Muon|ASGD|Rprop|Ranger\w*|Lookahead|Prodigy|Shampoo|create_optimizer(_v2)?)$"
)
SCHEDULE = re.compile(
    r"^(\w+LR|\w*WarmRestarts|ReduceLROnPlateau|get_\w*schedule\w*|get_scheduler|\w+Scheduler|create_scheduler(_v2)?)$"
)
LOSS_FUNCTION = re.compile(
    r"^(cross_entropy|nll_loss|\w*mse_loss|l1_loss|smooth_l1_loss|huber_loss|binary_cross_entropy\w*|kl_div|\w+_loss|\w*cross_?entropy\w*)$"
)
CALLED_LOSS = re.compile(r"\.(\w+_)?(loss|criterion)(_fn|_func)?$")
"""Attributes that are called as a loss function is, whatever function they hold: `self.loss = metrics.masked_error`."""
CLIPS = {"clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_", "dispatch_clip_grad"}
HARMLESS = re.compile(
    r"^_*(eval\w*|valid\w*|test\w*|log\w*|save\w*|print\w*|plot\w*|accuracy\w*|metric\w*|sample\w*|generate\w*|predict\w*|ema\w*|"
    r"update_(ema|average|teacher|metrics?|bn|progress|bar)\w*|to_device\w*|move_\w+|get_lr\w*|set_lr\w*|adjust_l\w*|checkpoint\w*|load_\w+|"
    r"(lr_?)?schedul(er|e)|append|extend|insert|pop|numpy|tolist|add_module|count_\w+|len|int|float|str|dict|list|tuple|zip|enumerate|range|iter|next|hasattr|getattr|isinstance|type|id|repr|"
    r"(add|show|display|report|record)_\w*(result|metric|image|plot|scalar|value|score|stat|curve)\w*|"
    r"all_gather\w*|barrier|summary\w*|\w+_checkpoints?|tqdm|trange|format\w*|seed\w*|set_seed|watch|interpolate\w*|soft_update\w*|polyak\w*|"
    r"\w*(adjust|change|set|get|update|warmup)_(lr|learning_rate)\w*|\w+_(eval|evaluation|validation|accuracy|metrics?)|state_dict|(named_)?buffers|freeze\w*|unfreeze\w*|requires_grad\w*|set_requires_grad|(un)?toggle_(grad|optimizer)|no_grad|profile\w*|reduce_(loss|tensor|mean|dict)\w*)$"
)
LOGGERS = re.compile(
    r"(^|\.)(\w*logger|\w*writer|wandb|experiment|tensorboard|console|\w*pbar|progress\w*)(\.|$)", re.I
)
"""Names of what records values and has no part in the training."""
AVERAGES = re.compile(r"(^|[._])(\w*_)?ema(_\w+)?(\.|$)|(EMA|EMAModel|ModelEma\w*|AveragedModel|MovingAverage)$")
"""Names of what keeps an average of the weights: its step() receives parameters and changes none of them."""
COMPUTES_LOSS = re.compile(
    r"^_*((compute|calc\w*|get|forward|eval\w*)_+)?(\w+_)?loss(es)?(_(fn|func|function|dict|terms))?$", re.I
)
"""Methods that return a loss and do nothing else."""
MAY_ACT = re.compile(
    r"zero|grad|clear|reset|optim|step|updat|train|fit|back|run|iter|process|closure|loop|epoch|learn|clip|sync|reduce|hook|"
    r"call|apply|handle|batch|scale|^[a-z_]{1,3}$",
    re.I,
)
"""Names of calls that may act on gradients although they receive only a model."""
SHOWS = re.compile(
    r"^(?!.*(train|step|fit|optim|back|grad|updat|learn)).*(^|_)(eval|valid|test|gen|infer|sampl|show|vis|plot|sav|export|print|demo)",
    re.I,
)
"""Names of calls that receive a model to show what it does, and return nothing."""
NAMES = {
    "optimizer": re.compile(r"(^|_)(optim(izer|iser)?s?|opt)(_|$|\d)|^opt[_A-Z]?\w*$|optimizer", re.I),
    "scheduler": re.compile(r"^(?!.*(compress|prun(e|ing)|sparsi|quanti|curricul)).*sched", re.I),
    "scaler": re.compile(r"scaler$", re.I),
    "accelerator": re.compile(r"^accelerator$", re.I),
    "fabric": re.compile(r"^fabric$", re.I),
    "criterion": re.compile(
        r"^(criterion\w*|loss_?(fn|func|function|f|criterion)|\w*_loss_fn|\w*_criterion|loss_?fct|ce_loss|\w*(BCE|MSE|CE)\w*)$",
        re.I,
    ),
    "model": re.compile(
        r"^((\w+_)?(model|net|network|module|encoder|decoder|generator|discriminator|critic|actor|policy|backbone)|net_?\w|G|D)$"
    ),
}
FACTORY = re.compile(
    r"^_*(build|create|get|make|load|init|initialize|setup|prepare|define|construct|set|select|choose|instantiate|wrap)_",
    re.I,
)
"""Names of functions that make such an object rather than being one."""
MODULES = re.compile(r"^(nn\.|torch\.nn\.)?(Module|Sequential)$|Model$|Module$|ModelMixin$")
"""Base classes of networks."""
HUGGING_FACE = re.compile(r"^\s*(?:from|import)\s+(?:transformers|trl)\b", re.M)


KINDS = {
    **dict.fromkeys(("GradScaler", "ShardedGradScaler"), "scaler"),
    **dict.fromkeys(("NativeScaler", "NativeScalerWithGradNormCount"), "loss_scaler"),
    **dict.fromkeys(("DistributedDataParallel", "DDP"), "ddp"),
    **dict.fromkeys(("DataParallel", "FullyShardedDataParallel", "FSDP"), "wrapper"),
    **dict.fromkeys(("compile", "convert_sync_batchnorm"), "wrapper"),
    **{"Accelerator": "accelerator", "Fabric": "fabric", "DataLoader": "loader"},
    **{"autocast": "autocast", "nullcontext": "null", "suppress": "null"},
    **dict.fromkeys(("DeepSpeedPlugin", "GradientAccumulationPlugin"), "plugin"),
}
"""What calling a name makes, whatever package it is from."""


def kind_made(dotted: str) -> str:
    """The kind of value that a call of an installed name makes; the empty string where that is not known."""
    tail = dotted.split(".")[-1]
    if "lr_scheduler" in dotted or SCHEDULE.match(tail):
        return "scheduler"
    if OPTIMIZER.match(tail) or dotted.startswith("torch.optim."):
        return "optimizer"
    if tail in KINDS:
        return KINDS[tail]
    if tail.endswith("TrainingArguments"):
        return "arguments"
    if dotted in ("lightning.Trainer", "pytorch_lightning.Trainer", "lightning.pytorch.Trainer"):
        return "lightning"
    if dotted.startswith("torch.nn.") and "Loss" in tail:
        return "criterion"
    if dotted.startswith(("torch.nn.functional.", "torch.nn.utils.", "torch.nn.init.", "torch.nn.parallel.")):
        return ""
    network = dotted.startswith("torch.nn.") and tail[:1].isupper() and tail not in ("Parameter", "Module")
    zoo = dotted.startswith(("torchvision.models.", "timm.create_model", "segmentation_models_pytorch."))
    pretrained = tail == "from_pretrained" and re.search(r"Model|For[A-Z]|Unet|UNet|Autoencoder", dotted)
    return "model" if network or zoo or pretrained else ""


def kind_by_name(name: str) -> str:
    """The kind that a name alone suggests: the last resort."""
    tail = name.split(".")[-1]
    if FACTORY.match(tail):
        return ""
    for kind in ("scaler", "accelerator", "fabric", "criterion", "model"):
        if NAMES[kind].search(tail):
            return kind
    return ""
