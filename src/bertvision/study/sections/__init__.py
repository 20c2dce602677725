"""The sections of a study's report: each file turns the records into tables, figures and a sentence on them."""
