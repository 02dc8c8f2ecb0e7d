"""Checkpoints of Hugging Face's transformers: their configs and the names of their tensors, as tables."""
