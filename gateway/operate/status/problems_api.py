"""``/-/admin/problems``: current problems, ended ones, and mutes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as PathParameter
from pydantic import Field

from gateway.admin.catalog.fields import RequestModel
from gateway.admin.http.requests import Changer, Cursor, Limit, Page, Parts, Reader, sliced
from gateway.admin.state.documents import PastProblem, ProblemSeen
from gateway.admin.state.operations import through_redis
from gateway.admin.state.parameters import Ops
from gateway.edge.documents import ResponseModel, moment
from gateway.model.datasets import ApiError
from gateway.operate.status.problems import past_problems, problems_of

router = APIRouter(tags=["overview"])

Name = Annotated[str, PathParameter(max_length=600, description="of a problem, as listed", examples=["origin gw-2"])]
_LONGEST = 30 * 86_400


class Mute(RequestModel):
    """How long a problem is muted."""

    seconds: float = Field(ge=60, le=_LONGEST, description="from now on", examples=[28_800])


class Muted(ResponseModel):
    """A mute."""

    name: str = Field(examples=["origin gw-2"])
    muted_until: str = Field(description="ISO 8601", examples=["2026-03-02T22:30:00.000Z"])


@router.get("/problems", summary="List problems")
async def list_problems(_caller: Reader, operations: Ops, limit: Limit = 100, cursor: Cursor = "") -> Page[ProblemSeen]:
    """The current problems, each with its remedy; errors first, muted ones last."""
    fleet = operations.fleet
    problems = problems_of(await fleet.look(), fleet.lost_for)
    return sliced(problems, limit, cursor)


@router.get("/problems/past", summary="List problems that have ended")
async def list_past_problems(
    _caller: Reader, operations: Ops, limit: Limit = 100, cursor: Cursor = ""
) -> Page[PastProblem]:
    """The last 200 problems that ended within a week, newest first."""
    ended = await through_redis(operations.fleet.sources.coordination.begun.ended())
    return sliced(past_problems(ended), limit, cursor)


@router.put("/problems/{name:name}/mute", summary="Mute a problem")
async def mute_problem(name: Name, caller: Changer, operations: Ops, parts: Parts, asked: Mute) -> Muted:
    """Mute a problem for some time: it is listed last and not counted in the console. Metrics, alerts and readiness stay as they
    are."""
    fleet = operations.fleet
    if not any(problem.name == name for problem in problems_of(await fleet.look(), fleet.lost_for)):
        raise _unknown(name)
    async with parts.catalog.changes.change(caller, "problems.mute", name[:300]) as change:
        until = await through_redis(fleet.sources.coordination.begun.mute(name, asked.seconds))
        change.after = {"muted_until": moment(until)}
    fleet.stale()
    return Muted(name=name, muted_until=moment(until))


@router.delete("/problems/{name:name}/mute", summary="End the mute of a problem", status_code=204)
async def unmute_problem(name: Name, caller: Changer, operations: Ops, parts: Parts) -> None:
    """End a mute: the problem is shown and counted again."""
    async with parts.catalog.changes.change(caller, "problems.unmute", name[:300]) as change:
        if not await through_redis(operations.fleet.sources.coordination.begun.unmute(name)):
            raise _unknown(name)
        change.after = {"muted_until": None}
    operations.fleet.stale()


def _unknown(name: str) -> ApiError:
    return ApiError("NotFound", f"There is no problem {name[:140]!r} to mute; larder-gateway status lists them.")
