"""What training an attachment needs on top of transformers' Trainer."""

from typing import TYPE_CHECKING

from ..lazy import lazily as _lazily

if TYPE_CHECKING:
    from .callbacks import UpdateEvery as UpdateEvery
    from .groups import freeze_flow as freeze_flow
    from .groups import parameter_groups as parameter_groups
    from .losses import token_loss as token_loss
    from .sweeps import one_sweep as one_sweep
else:
    _lazily(
        __name__,
        {
            "freeze_flow": ".groups",
            "one_sweep": ".sweeps",
            "parameter_groups": ".groups",
            "token_loss": ".losses",
            "UpdateEvery": ".callbacks",
        },
    )
