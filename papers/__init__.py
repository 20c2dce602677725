"""The experiments of the papers: a plan of commands, what the papers print, and a report of both side by side.

    python -m papers --list
    python -m papers --out runs/papers --encoder ENCODER --train train-v2.0.json --dev dev-v2.0.json --only heads
    python -m papers --out runs/papers --report

plan.yaml says which commands of `bertvision` to run and which tables to make of them; published.csv holds what the
papers print and errata.md what is wrong with that. A command that is done is not run again, and one that was killed
goes on.
"""
