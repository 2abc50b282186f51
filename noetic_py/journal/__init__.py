"""What is stored of a run: records, their bytes, and how changes of state are written."""
