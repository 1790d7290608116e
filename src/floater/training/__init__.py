"""What training an attachment needs on top of transformers' Trainer."""

from .groups import parameter_groups as parameter_groups
from .loss import token_loss as token_loss
from .update_every import UpdateEvery as UpdateEvery
