"""What a run leaves behind: records, checkpoints, results."""
