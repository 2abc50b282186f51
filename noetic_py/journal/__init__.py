"""The stored form of a run: records, their bytes, and changes of state."""
