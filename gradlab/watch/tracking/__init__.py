"""What is remembered of each optimizer, of its weights and of the loss scale, from call to call."""
