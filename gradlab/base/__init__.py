"""What everything else stands on and that knows nothing of gradients: options, errors, files, statistics."""
