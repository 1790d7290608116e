"""Hooks at the entry of a model, at both ends of its stacks, and at the entry of its blocks.

Hooks are objects instead of closures, so that a deep copy of a model gets hooks that refer to the
copy.
"""

from .blocks import BlockEntry as BlockEntry
from .blocks import EmbeddingsEntry as EmbeddingsEntry
from .carrier import Carrier as Carrier
from .carrier import carry as carry
from .carrier import uncarry as uncarry
from .entries import ModelEntry as ModelEntry
from .entries import StackEntry as StackEntry
from .exits import StackExit as StackExit
