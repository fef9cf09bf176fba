-- Which tasks have been running longest, on which worker, and until when does their lease stand?
--
-- lease_s below 0: the lease has run out; NULL: there is none. The reconciler ends both within seconds: rows that stay so
-- mean that no worker and no "tandemq reconcile" runs.
-- Costs: reads the rows of open tasks (pending and running): about one second per 200,000. Takes no locks.

SELECT t.id, t.queue, t.task_type, t.attempts, t.max_retries, t.worker_id, t.started_at,
       TIMESTAMPDIFF(SECOND, t.started_at, UTC_TIMESTAMP(6)) AS runs_s,
       TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), c.expires_at) AS lease_s,
       CASE WHEN t.cancel_requested_at > '1970-01-01' THEN t.cancel_requested_at END AS cancel_requested_at,
       w.host, w.pid, w.heartbeat_at
FROM tandemq_tasks t FORCE INDEX (open_rows)
LEFT JOIN tandemq_claims c ON c.lease_token = t.lease_token
LEFT JOIN tandemq_workers w ON w.id = t.worker_id
WHERE t.ended = 0 AND t.status = 'running'
ORDER BY t.started_at, t.id
LIMIT 50;
