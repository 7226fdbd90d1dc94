"""What all other packages are built on, and that knows nothing of gradients: options, errors, files, statistics."""
