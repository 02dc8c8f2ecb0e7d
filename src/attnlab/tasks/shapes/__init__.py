"""The task `shapes`: its data, its floors, its metrics."""
