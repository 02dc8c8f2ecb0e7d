"""What checks measure with, one instrument a file; parts of one check that say so."""
