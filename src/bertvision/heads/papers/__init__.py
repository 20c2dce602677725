"""The convolutional heads of the papers, rebuilt from their published sizes and descriptions."""
