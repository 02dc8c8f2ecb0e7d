"""The viewer: studies and runs in a browser, watched while they train. Nothing here trains or writes."""
