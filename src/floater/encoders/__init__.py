"""Encoders map times to encodings that are added (`Encoder`), rotate q and k (`Rotary`), or add
vectors for distances inside self-attention (`Relative`).
"""

from ..errors import ArgumentError
from ..ode import Pieces as Pieces
from ..ode import kernel_is_missing as kernel_is_missing
from .base import Encoder as Encoder
from .base import EncoderConfig as EncoderConfig
from .flow import Flow as Flow
from .flow import FlowConfig as FlowConfig
from .fourier import Fourier as Fourier
from .fourier import FourierConfig as FourierConfig
from .learned import Learned as Learned
from .learned import LearnedConfig as LearnedConfig
from .nothing import NoPosition as NoPosition
from .nothing import NoPositionConfig as NoPositionConfig
from .phases import PhaseFlow as PhaseFlow
from .phases import PhaseFlowConfig as PhaseFlowConfig
from .recurrent import Recurrent as Recurrent
from .recurrent import RecurrentConfig as RecurrentConfig
from .relative import DistanceVectors as DistanceVectors
from .relative import Relative as Relative
from .relative import RelativeConfig as RelativeConfig
from .rotary import Rotary as Rotary
from .rotary import RotaryConfig as RotaryConfig
from .sinusoidal import Sinusoidal as Sinusoidal
from .sinusoidal import SinusoidalConfig as SinusoidalConfig
from .tables import TableFlow as TableFlow
from .tables import TableFlowConfig as TableFlowConfig

ENCODER_CONFIGS: dict[str, type[EncoderConfig]] = {
    "flow": FlowConfig,
    "sinusoidal": SinusoidalConfig,
    "fourier": FourierConfig,
    "learned": LearnedConfig,
    "recurrent": RecurrentConfig,
    "rotary": RotaryConfig,
    "relative": RelativeConfig,
    "phases": PhaseFlowConfig,
    "table": TableFlowConfig,
    "none": NoPositionConfig,
}
"""Settings of each encoder by its kind, the name in config files and saved folders."""


def encoder_kind(config: EncoderConfig) -> str:
    """Return the name of an encoder's kind in config files and saved folders."""
    for kind, settings in ENCODER_CONFIGS.items():
        if type(config) is settings:
            return kind
    raise ArgumentError(
        f"`config` must be one of {', '.join(type_.__name__ for type_ in ENCODER_CONFIGS.values())}"
        f" to have a kind, but is a {type(config).__name__}."
    )
