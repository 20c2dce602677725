"""`run`: finetune, fit a zoo on every snapshot, evaluate, ensemble, report. Every stage can be killed and goes on.

OUT/config.yaml            the resolved settings, a recipe that repeats the run
OUT/finetune/snapshot-1/   encoder/ and head/ (and dev/, test/: logits and predictions of the head)
OUT/fit/snapshot-1/HEAD/   one folder a fitted head
OUT/results.json           every number of the report
OUT/report.html

config.py has the settings, run.py the whole job, stages.py what all tasks share; spans.py and texts.py evaluate.
"""

from bertvision.pipeline.config import RunConfig
from bertvision.pipeline.run import run

__all__ = ["RunConfig", "run"]
