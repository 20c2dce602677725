"""Labels and scores of texts: loss, merging of windows, metrics and comparisons."""
