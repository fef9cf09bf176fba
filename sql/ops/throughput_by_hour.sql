-- How many tasks ended, were retried or were removed in each of the last 48 hours (UTC), and of which types?
--
-- Costs: reads the counters, which the finishing batches keep: some thousand small rows, however big the task table is.
-- Takes no locks. Hours older than eight days are one row per day.

SELECT c.hour,
       SUM(CASE WHEN c.outcome = 'succeeded' THEN c.n ELSE 0 END) AS succeeded,
       SUM(CASE WHEN c.outcome = 'retried' THEN c.n ELSE 0 END) AS retried,
       SUM(CASE WHEN c.outcome = 'dead' THEN c.n ELSE 0 END) AS dead,
       SUM(CASE WHEN c.outcome = 'cancelled' THEN c.n ELSE 0 END) AS cancelled,
       SUM(CASE WHEN c.outcome = 'purged' THEN c.n ELSE 0 END) AS purged
FROM tandemq_task_counts c
WHERE c.hour >= UTC_TIMESTAMP(6) - INTERVAL 48 HOUR
GROUP BY c.hour
ORDER BY c.hour DESC;

SELECT c.queue, c.task_type, c.outcome, SUM(c.n) AS tasks
FROM tandemq_task_counts c
WHERE c.hour >= UTC_TIMESTAMP(6) - INTERVAL 48 HOUR
GROUP BY c.queue, c.task_type, c.outcome
ORDER BY tasks DESC
LIMIT 50;
