"""How each kind of step runs."""
