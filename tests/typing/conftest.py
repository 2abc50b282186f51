"""The programs are read by type checkers and never run."""

collect_ignore = ["programs"]
