"""What is known of PyTorch, of other packages and of Python itself: what their calls make and do to gradients."""
