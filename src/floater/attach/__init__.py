"""Put an encoder into any Hugging Face Transformer."""

from .attachment import Attachment as Attachment
from .attachment import attach as attach
from .attachment import attachment as attachment
from .layouts import LAYOUTS as LAYOUTS
from .sites import Sites as Sites
