"""One model on several devices: ranks, their rows of a batch, weights whole or in parts."""
