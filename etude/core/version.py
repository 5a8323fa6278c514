"""The version of the package, for rooms that write it into what they make."""

__version__ = "0.1.0"
