"""What was found as a piece of a page: maps, bars, tokens and tables that a notebook shows and a page can hold."""
