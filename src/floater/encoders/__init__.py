"""Encoders: times → encodings that are added (`Encoder`), or a transform of queries and keys
(`Rotary`).
"""

from .base import Encoder as Encoder
from .base import EncoderConfig as EncoderConfig
from .flow import Flow as Flow
from .flow import FlowConfig as FlowConfig
from .learned import Learned as Learned
from .learned import LearnedConfig as LearnedConfig
from .nothing import NoPosition as NoPosition
from .nothing import NoPositionConfig as NoPositionConfig
from .recurrent import Recurrent as Recurrent
from .recurrent import RecurrentConfig as RecurrentConfig
from .rotary import Rotary as Rotary
from .rotary import RotaryConfig as RotaryConfig
from .sinusoidal import Sinusoidal as Sinusoidal
from .sinusoidal import SinusoidalConfig as SinusoidalConfig

KINDS: dict[str, type[EncoderConfig]] = {
    "flow": FlowConfig,
    "sinusoidal": SinusoidalConfig,
    "learned": LearnedConfig,
    "recurrent": RecurrentConfig,
    "rotary": RotaryConfig,
    "none": NoPositionConfig,
}
"""Encoders by the name that stands in config files and saved folders."""
