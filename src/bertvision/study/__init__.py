"""A study: many tunings, fits, ensembles and readings over one encoder and one data set, and the report on them all."""
