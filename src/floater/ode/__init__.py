"""Solve dp/dt = h(t, p) for tensors and a callable; independent of Transformers."""

from .activations import ACTIVATIONS as ACTIVATIONS
from .activations import Activation as Activation
from .callable_field import CallableField as CallableField
from .device import runs_ahead as runs_ahead
from .fields import Dynamics as Dynamics
from .fields import Field as Field
from .gradient_method import ProvidesField as ProvidesField
from .gradient_method import refuse_second_order as refuse_second_order
from .kernel import kernel_is_missing as kernel_is_missing
from .kernel_field import fastest_mlp_field as fastest_mlp_field
from .mlp_field import MLP as MLP
from .pieces import Pieces as Pieces
from .solve import Gradient as Gradient
from .solve import Trajectory as Trajectory
from .solve import outside_graphs as outside_graphs
from .solve import solve as solve
from .solve import trajectory as trajectory
from .solvers import RK4 as RK4
from .solvers import Adaptive as Adaptive
from .solvers import Dopri5 as Dopri5
from .solvers import Euler as Euler
from .solvers import FixedStep as FixedStep
from .solvers import Midpoint as Midpoint
from .solvers import Solver as Solver
from .stepper import Stepper as Stepper
from .tableaus import Tableau as Tableau
