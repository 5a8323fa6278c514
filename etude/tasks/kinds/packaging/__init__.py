"""Tasks about packaging: which entries of a configuration are missing, and restorations that are false."""
