"""Training: the encoder with snapshots at fractions of an epoch, and many heads in one pass over its states."""
