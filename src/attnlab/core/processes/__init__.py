"""Processes of the lab's own: code of a person's apart, and how such a process is begun."""
