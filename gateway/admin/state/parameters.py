"""``Operations`` as a parameter of an endpoint."""

from typing import Annotated

from fastapi import Depends

from gateway.admin.state.operations import Operations
from gateway.edge.endpoints import of_state

Ops = Annotated[Operations, Depends(of_state("operations"))]
