"""Times at which encodings are taken: from positions, timestamps and sentence lengths; clocks."""

from .clock import Clock as Clock
from .learned import FeatureClock as FeatureClock
from .learned import LearnedClock as LearnedClock
from .learned import TimeClock as TimeClock
from .values import DELTA as DELTA
from .values import as_tensor as as_tensor
from .values import check_delta as check_delta
from .values import check_times as check_times
from .values import nearest_positions as nearest_positions
from .values import sentences as sentences
from .values import timestamps as timestamps
from .values import uniform as uniform
