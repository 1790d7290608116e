"""`python -m floater`, which launchers such as torchrun and accelerate need."""

from .cli import main

main()
