"""Heads: anything that turns the hidden states of all layers into logits.

Importing this package registers every head that ships with bertvision.
"""

from bertvision.heads import adapter as adapter
from bertvision.heads import ap_glue as ap_glue
from bertvision.heads import attention_pooler as attention_pooler
from bertvision.heads import biaffine as biaffine
from bertvision.heads import cacnn as cacnn
from bertvision.heads import cnn as cnn
from bertvision.heads import head2toe as head2toe
from bertvision.heads import inception as inception
from bertvision.heads import label as label
from bertvision.heads import label_xception as label_xception
from bertvision.heads import ladder as ladder
from bertvision.heads import layer_attention as layer_attention
from bertvision.heads import layer_reader as layer_reader
from bertvision.heads import linear as linear
from bertvision.heads import mean_pooler as mean_pooler
from bertvision.heads import minbert as minbert
from bertvision.heads import pooling as pooling
from bertvision.heads import recurrent as recurrent
from bertvision.heads import triplet as triplet
from bertvision.heads import xception as xception
from bertvision.heads.base import Geometry, Head, register
from bertvision.heads.catalogue import head_names
from bertvision.heads.cost import HeadCost, cost
from bertvision.heads.files import load_head, save_head
from bertvision.heads.spec import HeadSpec, parse_head

__all__ = [
    "Geometry",
    "Head",
    "HeadCost",
    "HeadSpec",
    "cost",
    "head_names",
    "load_head",
    "parse_head",
    "register",
    "save_head",
]
