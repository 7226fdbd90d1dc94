"""What following a program yields: values, a tree of events under conditions, and the training loops found in it."""
