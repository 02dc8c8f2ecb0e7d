"""Trained models taken out of the lab: as programs of torch and ONNX, and as checkpoints of transformers."""
