"""Bug: small mistakes in functions that tests notice. `propose`, `instruct`, `origin`."""
