"""What the demo set says and how it asks, one file for each part; `forms.py` reads them."""

from bertvision.data.demo.wording.dev import DEV
from bertvision.data.demo.wording.test import TEST
from bertvision.data.demo.wording.train import TRAIN

__all__ = ["WORDING"]

WORDING: dict[str, str] = {"train": TRAIN, "dev": DEV, "test": TEST}
