"""How a patient is called, found out: ways to call it are tried until one runs, then what it does is looked at."""
