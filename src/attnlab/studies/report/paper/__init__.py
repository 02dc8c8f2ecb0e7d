"""The report of a study in a paper: its verdicts as a table of LaTeX."""
