"""Many runs: searches that decide from finished runs which to make next."""
