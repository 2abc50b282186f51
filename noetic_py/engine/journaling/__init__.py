"""From a finished step to a commit, and from a journal back to a run."""
