"""What is trained on: a data set a file."""
