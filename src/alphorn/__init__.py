"""alphorn: a message server cluster with one order everywhere."""

__version__ = "0.1.0"
