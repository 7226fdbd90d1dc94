"""What a watch writes: metrics of each update, the run's folder, and the summary."""
