"""The networks of the models: plain PyTorch, each of which can be imported alone."""
