"""What the autograd graph of a loss shows when its backward pass begins."""
