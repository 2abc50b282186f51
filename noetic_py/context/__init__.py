"""What a step sees of its run, and the protocol by which it reaches the engine."""
