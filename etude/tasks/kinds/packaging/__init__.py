"""Tasks that restore a project's packaging.

In reading order: `kind`, `config_entries` (entries of a configuration, with their lines), `attacks` (restorations that
are false).
"""
