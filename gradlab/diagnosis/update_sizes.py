"""How far updates usually move weights: the norm of an update, the learning rate included, over that of the weights."""

LARGE_UPDATE = 1e-2
"""The largest that is usual: of PyTorch's own initial weights, under Adam at its usual rate."""
SMALL_UPDATE = 1e-4
"""Updates below it hardly train."""
