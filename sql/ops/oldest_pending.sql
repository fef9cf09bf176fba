-- Which due tasks have waited longest, and which retries are next?
--
-- Costs: reads the index entries and the rows of open tasks (pending and running), never those that have ended: about one
-- second per 200,000 open tasks. Takes no locks. Another table prefix than tandemq_: replace it.
-- If the oldest are old: tandemq why ID.

SELECT t.id, t.queue, t.priority, t.task_type, t.attempts, t.run_at,
       TIMESTAMPDIFF(SECOND, t.run_at, UTC_TIMESTAMP(6)) AS waits_s
FROM tandemq_tasks t FORCE INDEX (open_rows)
WHERE t.ended = 0 AND t.status = 'pending' AND t.run_at <= UTC_TIMESTAMP(6)
ORDER BY t.run_at, t.id
LIMIT 50;

SELECT t.queue, t.priority, t.status, COUNT(*) AS tasks, MIN(t.run_at) AS oldest_run_at, MAX(t.run_at) AS latest_run_at
FROM tandemq_tasks t FORCE INDEX (open_rows)
WHERE t.ended = 0
GROUP BY t.queue, t.priority, t.status
ORDER BY t.queue, t.priority DESC, t.status;
