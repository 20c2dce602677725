"""Encoders: found, loaded, fingerprinted, and asked for the hidden states of all their layers."""
