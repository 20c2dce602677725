"""`bertvision cache ACTION`: the stores of hidden states, made, listed, checked and removed.

One small file per action, each like a verb: a class of flags and the function of its name. Only `extract` needs torch.
"""

ACTIONS = {
    "extract": "encode a data set once and keep the hidden states; goes on where it was stopped",
    "ls": "list the stores: size, last use, the encoder and the data each belongs to",
    "info": "show everything one store says about itself",
    "verify": "check every byte of the shards; --drop removes damaged ones",
    "rm": "remove stores",
}


def help_text() -> str:
    rows = "\n".join(f"  {action:<10} {text}" for action, text in ACTIONS.items())
    return (
        "usage: bertvision cache [-h] ACTION [flags]\n\n"
        "Hidden states kept on disk or at any fsspec address, so that heads are fitted without the encoder.\n\n"
        f"actions:\n{rows}\n\n"
        "flags of every action:\n"
        "  --store ADDRESS   folder or fsspec address of the stores; by default ~/.cache/bertvision/states\n"
        "  --json            print the result as JSON\n\n"
        "  bertvision cache ACTION --help      the flags of an action\n"
        "  fit, eval and run read a store with --states.source stored or auto (and --states.store ADDRESS)\n"
    )
