"""Correct loops, each of which needs one thing to be understood."""

import torch
from helpers import master_parameters
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def picked_optimizer(model, loader, optimizers, schedulers, scaler, max_norm):
    """The optimizer whose number the model gives is unscaled, and stepped."""
    for x in loader:
        loss, picked = model(x)
        for one in optimizers:
            one.zero_grad()
        scaler.scale(loss).backward()
        for i, one in enumerate(optimizers):
            if picked is not None and i != picked:
                continue
            scaler.unscale_(one)
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        for i, (one, schedule) in enumerate(zip(optimizers, schedulers)):
            if picked is not None and i != picked:
                continue
            scaler.step(one)
            if schedule is not None:
                schedule.step()
        scaler.update()


class Rescaled:
    """The sum of a window is divided in a method of its own, over parameters that a library gives."""

    def rescale(self, factor):
        for p in master_parameters(self.optimizer):
            if p.grad is not None:
                p.grad.data.mul_(factor)

    def train(self, model, criterion, loader, optimizer, period):
        self.optimizer = optimizer
        for i, (x, y) in enumerate(loader):
            if i % period == 0:
                self.optimizer.zero_grad()
            criterion(model(x), y).backward()
            if (i + 1) % period == 0:
                self.rescale(1 / period)
                self.optimizer.step()


def whole_epoch(model, criterion, graphs, optimizer, epochs):
    """One update for a sum over all graphs, as meant."""
    for _ in range(epochs):
        optimizer.zero_grad()
        for graph in graphs:
            criterion(model(graph.x), graph.y).backward()
        optimizer.step()


def attacked(model, criterion, loader, optimizer, steps):
    """Gradients of an input, found in a loop of its own before those of the weights."""
    for x, y in loader:
        delta = torch.zeros_like(x, requires_grad=True)
        for _ in range(steps):
            model.zero_grad()
            criterion(model(x + delta), y).backward()
            delta.data.add_(delta.grad.sign())
            delta.grad = None
        optimizer.zero_grad()
        criterion(model(x + delta.detach()), y).backward()
        delta.grad = None
        optimizer.step()


def adversaries(netD, netG, optimD, optimG, criterion, loader):
    """Networks known by what is done with them."""
    for x, z in loader:
        netD.zero_grad()
        criterion(netD(x), 1).backward()
        fake = netG(z)
        criterion(netD(fake.detach()), 0).backward()
        optimD.step()
        netG.zero_grad()
        criterion(netD(fake), 1).backward()
        optimG.step()


def losses_by_name(world, actor_loss, world_opt, actor_opt, loader):
    for x in loader:
        world_opt.zero_grad()
        world(x).backward()
        world_opt.step()
        found = actor_loss(x)
        actor_opt.zero_grad()
        found["loss_actor"].backward()
        actor_opt.step()


def decorated(net, criterion, loader, optimizer, device):
    model = nn.Linear(4, 4)
    scaler = torch.amp.GradScaler(device)

    @torch.autocast(device, dtype=torch.float16)
    def apply(x):
        return model(x).float()

    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(criterion(apply(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()


class Wrapped:
    def __init__(self, model, distributed):
        self.distributed = False
        if distributed:
            self.distributed = True
        if self.distributed:
            model = DistributedDataParallel(model)
        self.model = model

    def train(self, criterion, loader, optimizer):
        for x, y in loader:
            optimizer.zero_grad()
            criterion(self.model(x), y).backward()
            optimizer.step()


def set_back(model, criterion, loader, start, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (i + 1))
    scheduler.last_epoch = start - 1
    for _ in range(start, epochs):
        scheduler.step()
        for x, y in loader:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()


def sums(model, criterion, loader, optimizer, window):
    """Sums that are begun anew, that go backward themselves, or of what has no gradient."""
    running, predictions = 0.0, []
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        rate = 0.0
        for _ in range(4):
            rate += model(x)
        loss = criterion(rate / 4, y) / window
        running += loss
        predictions.append(rate.argmax(dim=-1))
        loss.backward()
        if (i + 1) % window == 0:
            optimizer.step()
            optimizer.zero_grad()
            print(running.item())
            running = 0.0


def several_numbers(model, loader, optimizer):
    accuracy = 0
    for x in loader:
        optimizer.zero_grad()
        loss, right = model(x)
        accuracy += right
        loss.backward()
        optimizer.step()
    return accuracy


def anew(model, images):
    """Each image has an optimizer of its own, for itself."""
    for image in images:
        x = image.clone().requires_grad_(True)
        optimizer = torch.optim.SGD([x], lr=0.1)
        model(x).mean().backward()
        optimizer.step()


def tokens(model, loader, optimizer, n):
    count = 0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        here = (y != -100).sum()
        count += here
        (nn.functional.cross_entropy(model(x), y, ignore_index=-100) * here).backward()
        if (i + 1) % n == 0 or i + 1 == len(loader):
            for p in model.parameters():
                p.grad /= count
            optimizer.step()
            optimizer.zero_grad()
            count = 0


def of_some(model, criterion, loader, optimizer, frozen, head):
    """Parameters that are to stay lose their gradients before the step."""
    for x, y in loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        for name, p in model.named_parameters():
            if head in name:
                p.grad = None
        for p in frozen:
            p.grad = None
        for p in [p for p in model.parameters() if p.ndim > 1]:
            p.grad.zero_()
        optimizer.step()
