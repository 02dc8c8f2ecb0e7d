"""Where a run is shown beside its folder: TensorBoard, trackio, Weights & Biases, MLflow."""
