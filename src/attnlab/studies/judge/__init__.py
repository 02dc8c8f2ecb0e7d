"""What the runs of a study say: collected, measured, decided."""
