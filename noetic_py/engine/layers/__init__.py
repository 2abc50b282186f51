"""The life of memory layers during a run."""
