"""Steps: frozen values that say what to do. Nothing here runs anything."""
