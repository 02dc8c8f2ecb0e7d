"""What everything else agrees on: errors, names, contracts, specifications, sizes, files, the machine."""
