"""The parts of the backend on plain files, private."""
