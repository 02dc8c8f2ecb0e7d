"""Tasks: data, loss, metrics, floors."""
