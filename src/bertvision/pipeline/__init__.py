"""The flows as Python functions, which the verbs call: fit, finetune, run, evaluate, ensemble.

    run      OUT/config.yaml            the resolved settings, a recipe that repeats the run
             OUT/finetune/snapshot-1/   encoder/ and head/
             OUT/fit/snapshot-1/HEAD/   one folder a fitted head
             OUT/results.json           every number of the report
             OUT/report.html

`record.py` is the one writer of what is kept beside a head: its answers and logits, metrics.json and its card.
"""
