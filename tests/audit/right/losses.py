import numpy as np
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


def spectral_loss(x_magnitude, y_magnitude):
    return F.l1_loss(torch.log(y_magnitude), torch.log(x_magnitude))


def divergence_loss(p, q):
    return (p * torch.log(p / q)).sum(1).mean()


def anchor_loss(probabilities, target):
    return F.kl_div(probabilities.log(), target, reduction="batchmean")


def gamma_loss(truth, mean):
    return np.mean((truth - mean) / mean)
