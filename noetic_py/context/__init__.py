"""`Context`, and the protocol by which it reaches the engine."""
