"""Charts of what was seen inside the models of a study."""
