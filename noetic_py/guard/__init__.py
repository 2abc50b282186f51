"""Where a harness asks whether something may be done."""
