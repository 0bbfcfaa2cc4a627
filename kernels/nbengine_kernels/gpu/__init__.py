"""Being built: serves the reference functions for now."""

from nbengine_kernels.reference import *  # noqa: F403
