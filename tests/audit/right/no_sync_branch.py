"""no_sync() in a branch that knows the last batch of the epoch."""

from torch.nn.parallel import DistributedDataParallel


def train(net, loader, criterion, optimizer, n, distributed):
    model = DistributedDataParallel(net)
    last_index = len(loader) - 1
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        last = i == last_index
        due = last or (i + 1) % n == 0
        length = n if i < len(loader) - len(loader) % n else len(loader) % n

        def forward(x=x, y=y, length=length):
            return criterion(model(x), y) / length

        if distributed and not due:
            with model.no_sync():
                forward().backward()
        else:
            forward().backward()
        if due:
            optimizer.step()
            optimizer.zero_grad()
