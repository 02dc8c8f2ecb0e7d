"""Set-ups, their runs, and what these say of the number that is explained."""
