"""FLOATER: position encodings as the solution of a learned ODE, for any Transformer, any length and
any spacing.
"""

from typing import TYPE_CHECKING

from .lazy import lazily as _lazily

if TYPE_CHECKING:
    from .attachments import Attachment as Attachment
    from .attachments import Sites as Sites
    from .attachments import TimeJitter as TimeJitter
    from .attachments import attach as attach
    from .attachments import attachment as attachment
    from .attachments import extend as extend
    from .attachments import from_pretrained as from_pretrained
    from .attachments import save_pretrained as save_pretrained
    from .dynamics import LinearDynamics as LinearDynamics
    from .dynamics import MLPDynamics as MLPDynamics
    from .dynamics import SinusoidDynamics as SinusoidDynamics
    from .dynamics import ZeroDynamics as ZeroDynamics
    from .encoders import FlowConfig as FlowConfig
    from .encoders import FourierConfig as FourierConfig
    from .encoders import LearnedConfig as LearnedConfig
    from .encoders import NoPositionConfig as NoPositionConfig
    from .encoders import PhaseFlowConfig as PhaseFlowConfig
    from .encoders import RecurrentConfig as RecurrentConfig
    from .encoders import RelativeConfig as RelativeConfig
    from .encoders import RotaryConfig as RotaryConfig
    from .encoders import SinusoidalConfig as SinusoidalConfig
    from .encoders import TableFlowConfig as TableFlowConfig
    from .errors import FloaterError as FloaterError
    from .errors import RangeWarning as RangeWarning
    from .ode import RK4 as RK4
    from .ode import Dopri5 as Dopri5
    from .ode import Euler as Euler
    from .ode import Midpoint as Midpoint
    from .ode import Trajectory as Trajectory
    from .ode import solve as solve
    from .ode import trajectory as trajectory
    from .times import Clock as Clock
else:
    _lazily(
        __name__,
        {
            "Attachment": ".attachments",
            "Sites": ".attachments",
            "TimeJitter": ".attachments",
            "attach": ".attachments",
            "attachment": ".attachments",
            "extend": ".attachments",
            "from_pretrained": ".attachments",
            "save_pretrained": ".attachments",
            "LinearDynamics": ".dynamics",
            "MLPDynamics": ".dynamics",
            "SinusoidDynamics": ".dynamics",
            "ZeroDynamics": ".dynamics",
            "FlowConfig": ".encoders",
            "FourierConfig": ".encoders",
            "LearnedConfig": ".encoders",
            "NoPositionConfig": ".encoders",
            "PhaseFlowConfig": ".encoders",
            "RecurrentConfig": ".encoders",
            "RelativeConfig": ".encoders",
            "RotaryConfig": ".encoders",
            "SinusoidalConfig": ".encoders",
            "TableFlowConfig": ".encoders",
            "FloaterError": ".errors",
            "RangeWarning": ".errors",
            "RK4": ".ode",
            "Dopri5": ".ode",
            "Euler": ".ode",
            "Midpoint": ".ode",
            "Trajectory": ".ode",
            "solve": ".ode",
            "trajectory": ".ode",
            "Clock": ".times",
        },
    )

__version__ = "0.1.0"
