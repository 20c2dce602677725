"""Tasks: what the logits mean.

Loss, decoding, merging of windows, thresholds and metrics of one task live together.
Each task is a package: `bertvision.tasks.span`.
"""
