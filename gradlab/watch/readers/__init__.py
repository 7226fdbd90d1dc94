"""What is found in the calls of single updates: each reader follows them and finds one kind of mistake."""
