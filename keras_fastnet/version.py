"""The package's version, which packaging tools read without an import."""

__version__ = "0.1.0"
