"""What a study would cost, and whether it can be run."""
