"""The flows as Python functions: what the verbs call.

Each takes the settings of its name (config.py) and returns a result with `to_json`, or rows of results:
fit_heads(FitArgs), finetune(FinetuneArgs), compare_policies(FinetuneArgs), multitask(MultitaskArgs),
triplet(TripletArgs), evaluate(EvalArgs), ensemble(EnsembleArgs), run(RunArgs).
"""
