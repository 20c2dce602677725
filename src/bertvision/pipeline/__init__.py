"""The flows as Python functions that the verbs call, each with the settings of its name (config.py)."""
