"""Small versions of every head, with batches to run them on."""

import dataclasses
import functools
from typing import Any

import torch
from torch import Tensor

from bertvision.heads import Geometry, Head, StateBatch, parse_head
from bertvision.heads.base import bare_batch
from bertvision.heads.layers import BatchNorm

_TOKENS = """
    last_state last_state_mlp:match=3 last_state_mlp:width=4,activation=none,dropout=0.3 average_pooling
    average_pooling:of=first-last learned_pooling adapter:size=3 adapter:size=3,skip,gelu=erf
    adapter:size=3,unshared,skip,dropout=0.3 pooled_adapter:size=3
    pooled_adapter:size=3,pooling=average,skip=false,gelu=erf twin_adapter:size=3
    ladder:size=4,rung=3,heads=2 ladder:size=3,unshared,rung=0,heads=0,skip=false,dropout=0.1
    recurrent:size=4 recurrent:size=3,skip=false,dropout=0.1 layer_attention:size=4,heads=2 head2toe
    biaffine:size=3,rank=2 biaffine:size=3,rank=1,skip=false,gelu=erf,dropout=0.1 layer_reader:layer=0
    layer_reader cnn:dropout=0.1 cnn:dilated cnn:input=learned,adapter=5 cnn:input=average,skip=false
    cnn:kernel=nxn,input=learned,adapter=6,skip=false cnn:kernel=nxn,dilated inception:adapter=4
    inception:adapter=3,axis=tokens xception_mod:adapter=7 cacnn
    cacnn:n=4,rows=3,kernel=2,pool=mean,mask_question,dropout=0 cacnn:variant=ctx
    cacnn:variant=ctx,n=2,rows=4,kernel=4,reduce=sum,bank=2-3,mask_question
    cacnn:variant=ctx,n=2,rows=3,fill=tile,filters=2,maps=3
"""
_WINDOWS = """
    tenney_small adapter_pooler:size=3 adapter_pooler:size=3,pooling=average,gelu=erf cls_linear
    cls_mlp:match=3,dropout=0.2 ap_glue:size=2,tokens=9 ap_glue:size=3,tokens=12,gelu=tanh
    minbert:blocks=2,width=5 minbert:blocks=1,vectors=2 attention_pooler:size=3
    attention_pooler:size=3,queries=2,over=layers+tokens mean_pooler mean_pooler:last xception_abbr
    xception_abbr:cls xception:pool=max
"""
TOKEN_SPECS, WINDOW_SPECS = _TOKENS.split(), _WINDOWS.split()
TOKEN = Geometry(states=3, hidden=12)
WINDOW = Geometry(states=3, hidden=12, outputs=3, unit="window", pooled=True)
CASES = [(text, TOKEN) for text in TOKEN_SPECS]
CASES += [(text, WINDOW) for text in [*WINDOW_SPECS, "layer_reader:layer=1"]]
CONV = [case for case in CASES if case[0].startswith(("cnn", "cacnn", "inception", "xception"))]
IDS = [f"{text}-{geometry.unit}" for text, geometry in CASES]


@functools.cache
def _built(text: str, geometry: Geometry) -> Head:
    return parse_head(text).build(geometry, seed=0)


def shaken(text: str, geometry: Geometry = TOKEN) -> Any:
    """A head in evaluation mode whose parameters and running statistics lie far from their initial values."""
    head = _built(text, geometry).float().eval()
    shake(head)
    return head


def shake(module: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.grad = None
            scale = 0.5 if parameter.ndim < 2 else max(0.1, parameter[0].numel() ** -0.5)
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    for norm in (m for m in module.modules() if isinstance(m, BatchNorm)):
        norm.running_mean.copy_(torch.randn(norm.running_mean.shape, generator=generator) * 0.5)
        norm.running_var.copy_(torch.rand(norm.running_var.shape, generator=generator) + 0.5)
        norm.steps.fill_(3)


def batch_of(geometry: Geometry, rows: int = 4, tokens: int = 6) -> StateBatch:
    """Windows of which every second is as short as it can be; the paragraph begins at token 2."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([tokens if i % 2 == 0 else (tokens + 1) // 2 for i in range(rows)])
    states = torch.randn(geometry.states, rows, tokens, geometry.hidden, generator=generator)
    states *= torch.arange(1.0, geometry.states + 1)[:, None, None, None]  # layers differ in scale
    return bare_batch(
        states,
        torch.arange(tokens) < lengths[:, None],
        bounds=torch.stack([torch.full((rows,), min(2, tokens - 1)), lengths], dim=1),
        pooled=torch.randn(rows, geometry.hidden, generator=generator).tanh() if geometry.pooled else None,
    )


def changed(batch: StateBatch, **fields: Any) -> StateBatch:
    return dataclasses.replace(batch, **fields)


def cast(batch: StateBatch, dtype: torch.dtype) -> StateBatch:
    return changed(
        batch, states=batch.states.to(dtype), pooled=None if batch.pooled is None else batch.pooled.to(dtype)
    )


def real(logits: Tensor, batch: StateBatch) -> Tensor:
    """The logits that count: those of real tokens, or of all windows."""
    return logits[batch.mask] if logits.ndim == 3 else logits
