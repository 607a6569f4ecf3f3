"""The application for Ray Serve: `application` makes it of a `Plan`.

`localagent serve --ray` runs it. So does `serve deploy FILE` on a cluster, with a file of which
`localagent serve --ray --print-config` writes the first form.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig
from starlette.applications import Starlette

from localagent.errors import UsageError
from localagent.server.access import KEYS, Access, keys_for
from localagent.server.app import all_wires, create_app
from localagent.server.bounds import Bounds
from localagent.server.fleet.model import FleetModel, Window, answered
from localagent.server.fleet.plan import ROOM, Plan
from localagent.server.fleet.replica import Replica
from localagent.server.fleet.router import PrefixRouter
from localagent.server.models import ModelPool, ServedModel
from localagent.server.service import Service, log_to_standard_error

NAME = "localagent"
IMPORT_PATH = "localagent.server.fleet.deployment:application"
QUIET = LoggingConfig(enable_access_log=False, log_level="WARNING")
"""What Ray logs: we write a line for each request ourselves."""
_TRIES = 3
"""Of a replica to load its first model, before the application is given up."""
_LOOKS = 5
"""Measurements within the seconds that decide about one replica more."""


def application(plan: Plan | Mapping[str, Any]) -> serve.Application:
    """What `serve run` and `serve deploy` are given: see the fields of `Plan` for its arguments."""
    plan = Plan.model_validate(plan)
    least, most = plan.replicas
    lanes = plan.most_lanes
    scaling = AutoscalingConfig(
        min_replicas=least,
        max_replicas=most,
        target_ongoing_requests=lanes,
        upscale_delay_s=plan.scale_up_after,
        downscale_delay_s=plan.scale_down_after,
        look_back_period_s=plan.scale_up_after,
        metrics_interval_s=plan.scale_up_after / _LOOKS,
    )
    routing: dict[str, Any] = {
        "request_router_class": PrefixRouter,
        "request_router_kwargs": {"lanes": lanes},
    }
    deployment: Any = serve.deployment  # whose types know no classes
    models = deployment(
        Replica,
        name="models",
        autoscaling_config=scaling,
        max_ongoing_requests=ROOM * lanes,
        request_router_config=RequestRouterConfig(**routing),
        ray_actor_options={"num_cpus": plan.cpus, "num_gpus": plan.gpus},
        health_check_period_s=plan.health_every,
        health_check_timeout_s=30,
        graceful_shutdown_timeout_s=plan.grace,
        max_constructor_retry_count=_TRIES,
        logging_config=QUIET,
    )
    server = deployment(
        serve.ingress()(Server),
        name="server",
        num_replicas=plan.servers,
        max_ongoing_requests=Bounds().connections,
        ray_actor_options={"num_cpus": 0},
        health_check_period_s=plan.health_every,
        graceful_shutdown_timeout_s=plan.grace,
        logging_config=QUIET,
    )
    return cast(serve.Application, server.bind(plan, models.bind(plan)))


class Server:
    """The application that speaks HTTP, as Ray starts it."""

    def __init__(self, plan: Plan, models: DeploymentHandle[Any]) -> None:
        self._plan = plan
        self._models = models

    def __serve_build_asgi_app__(self) -> Starlette:
        """Called by Ray when the object is made: see `serve.ingress`."""
        plan = self._plan
        log_to_standard_error(plan.log_prompts, sys.__stderr__)  # Ray puts another one in its place
        keys = keys_for(plan.api_key_file)
        if plan.needs_key and not keys:
            raise UsageError(f"{KEYS} is not set where the server runs: give the keys in a file there")
        access = Access(
            plan.host,
            keys,
            plan.origins,
            page=plan.page,
            share=plan.share_prefixes,
            allow_hosts=plan.allow_hosts,
        )
        pool = ModelPool(
            {name: self._loader(name) for name in plan.models},
            aliases=plan.aliases,
            queue=plan.max_queue,
            unloads=False,
        )
        self._service = Service(
            pool,
            access,
            Bounds(queue=plan.max_queue, deadline=plan.deadline),
            metrics=plan.metrics,
            log_prompts=plan.log_prompts,
            buffer_tool_calls=plan.buffer_tool_calls,
        )
        return create_app(self._service, all_wires())

    async def stop(self) -> None:
        """End all answers with an error, as one process does: Ray would cut them off."""
        await self._service.stop()

    def _loader(self, name: str) -> Callable[[], ServedModel]:
        """What has a replica load the model of that name, and raises what loading raises."""
        ask = self._models.options(method_name="described", multiplexed_model_id=name)

        def load() -> FleetModel:
            told = answered(ask.remote(name).result)
            dialect, lanes = told.pop("dialect"), told.pop("lanes") * self._plan.replicas[1]
            return FleetModel(self._models, name, Window(name=name, lanes=lanes, **told), dialect)

        return load
