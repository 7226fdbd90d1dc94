"""What callables of PyTorch and the usual packages make, and what usage says of a name that nothing else explains."""

from __future__ import annotations

import ast
import re

from gradlab.audit.source.syntax import dotted, walk

OPTIMIZER = re.compile(
    r"^(Fused|Distributed|PagedAdamW|Sparse)?(Adam\w*|SGD\w*|RMSprop\w*|Adagrad|Adadelta|LBFGS|Lion\w*|LAMB|Lamb|NAdam|RAdam"
    r"|Adafactor|Muon|ASGD|Rprop|Ranger\w*|Lookahead|Prodigy|Shampoo|create_optimizer(_v2)?)$"
)
SCHEDULE = re.compile(
    r"^(\w+LR|\w*WarmRestarts|ReduceLROnPlateau|get_\w*schedule\w*|get_scheduler|\w+Scheduler|create_scheduler(_v2)?)$"
)
LOSS_FUNCTION = re.compile(
    r"^(cross_entropy|nll_loss|\w*mse_loss|l1_loss|smooth_l1_loss|huber_loss|binary_cross_entropy\w*|kl_div|\w+_loss|\w*cross_entropy\w*)$"
)
CLIPS = {"clip_grad_norm_", "clip_grad_norm", "clip_grad_value_", "clip_grads_with_norm_", "dispatch_clip_grad"}
HARMLESS = re.compile(
    r"^_*(eval\w*|valid\w*|test\w*|log\w*|save\w*|print\w*|plot\w*|accuracy\w*|metric\w*|sample\w*|generate\w*|predict\w*|ema\w*|"
    r"update_(ema|average|teacher|metrics?|bn|progress|bar)\w*|to_device\w*|move_\w+|get_lr\w*|set_lr\w*|adjust_l\w*|checkpoint\w*|load_\w+|"
    r"count_\w+|len|int|float|str|dict|list|tuple|zip|enumerate|range|iter|next|hasattr|getattr|isinstance|type|id|repr|"
    r"all_gather\w*|barrier|summary\w*|tqdm|trange|format\w*|seed\w*|set_seed|watch|interpolate\w*|soft_update\w*|polyak\w*|"
    r"state_dict|(named_)?buffers|freeze\w*|unfreeze\w*|requires_grad\w*|set_requires_grad|(un)?toggle_(grad|optimizer)|no_grad|profile\w*|reduce_(loss|tensor|mean|dict)\w*)$"
)
TELLING = re.compile(
    r"(^|\.)(\w*logger|\w*writer|wandb|experiment|tensorboard|console|\w*pbar|progress\w*)(\.|$)", re.I
)
"""Names of what writes down what it is told, and has no part in the training."""
COMPUTES = re.compile(
    r"^_*((compute|calc\w*|get|forward|eval\w*)_+)?(\w+_)?loss(es)?(_(fn|func|function|dict|terms))?$", re.I
)
"""Methods that give a loss back, and do no more."""
MOVES = re.compile(
    r"zero|grad|clear|reset|optim|step|updat|train|fit|back|run|iter|process|closure|loop|epoch|learn|clip|sync|reduce|hook|"
    r"call|apply|handle|batch|scale|^[a-z_]{1,3}$",
    re.I,
)
"""What the name of a call says that may move gradients although it is handed no more than a model."""
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
MAKING = re.compile(
    r"^_*(build|create|get|make|load|init|initialize|setup|prepare|define|construct|set|select|choose|instantiate|wrap)_",
    re.I,
)


def made(dotted: str) -> str:
    """The kind that calling an installed name makes."""
    tail = dotted.split(".")[-1]
    if "lr_scheduler" in dotted or SCHEDULE.match(tail):
        return "" if tail in ("LambdaLR_", "GradScaler") else "scheduler"
    if OPTIMIZER.match(tail) or dotted.startswith("torch.optim."):
        return "optimizer"
    if tail in ("GradScaler", "ShardedGradScaler"):
        return "scaler"
    if tail in ("NativeScaler", "NativeScalerWithGradNormCount"):
        return "loss_scaler"
    if tail in ("DistributedDataParallel", "DDP"):
        return "ddp"
    if tail in ("DataParallel", "FullyShardedDataParallel", "FSDP", "compile", "convert_sync_batchnorm"):
        return "wrapper"
    if tail == "Accelerator":
        return "accelerator"
    if tail == "Fabric":
        return "fabric"
    if tail == "DataLoader":
        return "loader"
    if tail == "autocast":
        return "autocast"
    if tail == "nullcontext":
        return "null"
    if tail == "TrainingArguments" or tail.endswith("TrainingArguments"):
        return "arguments"
    if dotted in ("lightning.Trainer", "pytorch_lightning.Trainer", "lightning.pytorch.Trainer"):
        return "lightning"
    if dotted.startswith("torch.nn.") and tail.endswith("Loss"):
        return "criterion"
    if dotted.startswith(("torch.nn.functional.", "torch.nn.utils.", "torch.nn.init.", "torch.nn.parallel.")):
        return ""
    if dotted.startswith("torch.nn.") and tail[:1].isupper() and tail not in ("Parameter", "Module"):
        return "model"
    if dotted.startswith(("torchvision.models.", "timm.create_model", "segmentation_models_pytorch.")):
        return "model"
    if tail == "from_pretrained" and re.search(r"Model|For[A-Z]|Unet|UNet|Autoencoder", dotted):
        return "model"
    return ""


class Usage:
    """Which methods are called on a dotted name inside a function or class, and what it is handed to."""

    def __init__(self, scope: ast.AST):
        self.methods: dict[str, set[str]] = {}
        self.handed: dict[str, set[str]] = {}
        self.called: set[str] = set()
        self.items: dict[str, set[str]] = {}  # methods called on the items of a list: `opts[i].step()`
        for node in walk(scope):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Subscript):
                self.items.setdefault(dotted(node.value.value), set()).add(node.attr)
            if isinstance(node, ast.Attribute) and (name := dotted(node.value)):
                self.methods.setdefault(name, set()).add(node.attr)
            if isinstance(node, ast.Call):
                self.called.add(dotted(node.func))
                to = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                for argument in [*node.args, *(k.value for k in node.keywords)]:
                    if name := dotted(argument):
                        self.handed.setdefault(name, set()).add(to)

    def kind(self, name: str) -> str:
        methods, handed = self.methods.get(name, set()), self.handed.get(name, set())
        if methods & {"unscale_", "get_scale"} or {"scale", "update"} <= methods or {"scale", "step"} <= methods:
            return "scaler"
        if (
            ({"zero_grad", "step"} <= methods)
            or {"first_step", "second_step"} <= methods
            or "param_groups" in methods
            or handed & {"unscale_", "master_params"}
        ):
            return "optimizer"
        if {"backward", "step"} <= methods:
            return "engine"
        if methods & {"sync_gradients", "accumulate", "prepare", "unwrap_model"}:
            return "accelerator"
        if methods & {"no_backward_sync", "clip_gradients"} and "backward" in methods:
            return "fabric"
        if "no_sync" in methods:
            return "ddp"
        if methods & {"parameters", "named_parameters"}:
            return "model"
        if methods & {"get_last_lr", "get_lr"} and "step" in methods:
            return "scheduler"
        if "step" in methods and not methods & {"reset", "render", "action_space"}:
            if NAMES["scheduler"].search(name):
                return "scheduler"
            if NAMES["optimizer"].search(name.split(".")[-1]):
                return "optimizer"
        if "zero_grad" in methods:
            return "model" if methods & {"train", "eval"} or name in self.called else "optimizer"
        return ""


def by_name(name: str) -> str:
    """The last resort: what a name alone suggests; one that begins with a verb is what makes such a thing."""
    tail = name.split(".")[-1]
    if MAKING.match(tail):
        return ""
    for kind in ("scaler", "accelerator", "fabric", "criterion", "model"):
        if NAMES[kind].search(tail):
            return kind
    return ""
