"""One training loop for every model and task, and the run folders it writes."""
