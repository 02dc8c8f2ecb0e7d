"""How a model is trained, as data: optimizers, schedules, targets."""
