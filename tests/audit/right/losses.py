import torch
import torch.nn.functional as F

eps = 1e-8


def stable_loss(pred, target):
    return ((pred - target) / (pred.abs() + eps)).pow(2).mean()


def good_loss(pred, target):
    return -torch.log(pred + eps).mean()


def good_loss2(pred, target):
    return (target / (pred + eps)).mean()


def good_loss4(logits, targets):
    return F.cross_entropy(logits, targets)
