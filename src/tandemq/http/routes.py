"""The table of routes."""

from __future__ import annotations

from typing import Final

from tandemq.http import batch, enqueuing, health, looking, openapi, operating, working
from tandemq.http.routing import ANYBODY, LOOK, LOOK_AT_ONE, OPERATE, PRODUCE, WORK, Route

ROUTES: Final[tuple[Route, ...]] = (
    Route("POST", "/jobs", "enqueue", PRODUCE, enqueuing.enqueue),
    Route("POST", "/jobs/batch", "enqueue_batch", PRODUCE, batch.enqueue_batch),
    Route("POST", "/jobs/claim", "claim", WORK, working.claim),
    Route("GET", "/jobs", "list_jobs", LOOK, looking.list_jobs),
    Route("GET", "/jobs/{id}", "show_job", LOOK_AT_ONE, looking.show_job),
    Route("POST", "/jobs/{id}/heartbeat", "heartbeat", WORK, working.heartbeat),
    Route("POST", "/jobs/{id}/complete", "complete", WORK, working.complete),
    Route("POST", "/jobs/{id}/fail", "fail", WORK, working.fail),
    Route("POST", "/jobs/{id}/cancel", "cancel_job", OPERATE, operating.cancel_job),
    Route("POST", "/jobs/{id}/replay", "replay_job", OPERATE, operating.replay_job),
    Route("GET", "/stats", "stats", LOOK, looking.stats),
    Route("GET", "/dead", "list_dead", LOOK, looking.list_dead),
    Route("POST", "/dead/replay", "replay_dead", OPERATE, operating.replay_dead),
    Route("GET", "/dead/replays/{id}", "show_replay", LOOK, operating.show_replay),
    Route("GET", "/health/live", "live", ANYBODY, health.live),
    Route("GET", "/health/ready", "ready", ANYBODY, health.ready),
    Route("GET", "/metrics", "metrics", LOOK, health.metrics),
    Route("GET", "/openapi.json", "openapi", LOOK_AT_ONE, openapi.document),
)
