"""Add an encoder to any Hugging Face Transformer."""

from .attaching import attach as attach
from .attaching import attachment as attachment
from .attachment import Attachment as Attachment
from .beyond import Beyond as Beyond
from .extending import extend as extend
from .jitter import TimeJitter as TimeJitter
from .layouts import LAYOUTS as LAYOUTS
from .loading import from_pretrained as from_pretrained
from .saving import save_pretrained as save_pretrained
from .sites import Sites as Sites
