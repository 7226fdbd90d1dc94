import torch


def bad_loss(pred, target):
    return -torch.log(pred).mean()  # expect: GL601


def bad_loss2(pred, target):
    return (target / pred).mean()  # expect: GL602


def unstable_loss(pred, target):
    return ((pred - target) / pred).pow(2).mean()  # expect: GL602


def bad_loss3(pred, target):
    diff = pred - target
    return torch.sqrt(diff**2).mean()  # expect: GL603


def good_loss3(pred, target):
    diff = pred - target
    return torch.sqrt(torch.clamp(diff**2, min=0)).mean()  # expect: GL603


def bad_loss4(logits):
    return torch.exp(logits).sum()  # expect: GL604
