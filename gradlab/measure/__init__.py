"""What is recorded of an update: norms of layers, activations, memory, time."""
