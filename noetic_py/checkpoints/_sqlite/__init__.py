"""The parts of the SQLite backend, private."""
