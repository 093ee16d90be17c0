"""Entry point for tools that expect a setup.py; the metadata is in pyproject.toml."""

from setuptools import setup

setup()
