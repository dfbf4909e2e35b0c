"""A wave that waits for a person, as a flow run that waits: suspended, with a form, and without a process.

The migration goes on meanwhile, with other images and with deadlines. The answer lies in the database, bound to
the digest of the image, and the migration hears it within seconds; so it does if it is said in the shell instead.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from prefect import flow, get_client, runtime
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.states import Cancelled
from pydantic import Field

from flows.core.formatting import short
from flows.core.settings import load as load_settings
from flows.migrations.notifications.fleet import Question
from flows.migrations.rollouts.control import steer
from flows.sessions.wishes import caller

DEPLOYMENT = "approve-wave/refit"
_ASKING = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED)


class Answer(RunInput):
    """A person's answer on a rollout."""

    what: Literal["approve", "pause", "abort"] = Field(
        "approve",
        description="approve: the next wave begins. pause: nobody moves until somebody says resume. "
        "abort: nobody moves any more, and who was told hears so.",
    )


def _title() -> str:
    parameters = runtime.flow_run.parameters
    return f"approve {parameters['wave']} of {short(parameters['image'])}"


@flow(name="approve-wave", flow_run_name=_title)
def approve_wave(image: str, wave: str, shown: str) -> str:
    """Wait for a person who says whether the rollout of an image goes on after a wave. Migrations start it themselves.

    Args:
        image: Digest of the image: the answer holds for no other.
        wave: Title of the wave, e.g. `10 %`.
        shown: The results of the wave, for the person.
    """
    markdown = f"**{short(image)}**, wave **{wave}**: {shown}\n\n`refit migrate status` shows more."
    # A killed migration, or a server that starts anew, takes no question back: it waits for as long as the wave does.
    answer = suspend_flow_run(wait_for_input=Answer.with_initial_data(markdown), timeout=None)
    return steer(answer.what, image, load_settings(), caller(), wave)


def ask(questions: Collection[Question]) -> None:
    """Have one run wait for a person for each of these questions, and none for what is settled.

    Nobody approves by an old form what has failed since: the results of the wave are part of the question.
    Where the flows aren't offered, people are asked by notices alone.
    """
    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(DEPLOYMENT)
        except ObjectNotFound:
            return
        runs_of_flow = FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=[deployment.id]),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[*_ASKING])),
        )
        settled: State[str] = Cancelled(message="It was answered elsewhere, or isn't asked any more in this way.")
        open_questions = set[Question]()
        for run in client.read_flow_runs(flow_run_filter=runs_of_flow):
            about = Question(**run.parameters)
            if about in questions:
                open_questions.add(about)
            elif run.state_type is StateType.PAUSED:
                client.set_flow_run_state(run.id, settled, force=True)
        for about in questions:
            if about not in open_questions:
                client.create_flow_run_from_deployment(deployment.id, parameters=vars(about))
