"""From what was measured to a verdict with its evidence."""
