-- What do tasks die of: how many of which kind, since when, until when, and one of them?
--
-- Digits are folded, so that "order 17 is gone" and "order 18 is gone" are one kind.
-- Costs: reads every dead row: about one second per 100,000. Takes no locks. The same, bounded: tandemq dead list
-- --group-by error.

SELECT k.task_type, k.dead_reason, k.error_type, k.kind, COUNT(*) AS tasks,
       MIN(k.completed_at) AS first_at, MAX(k.completed_at) AS last_at, MAX(k.id) AS example_id
FROM (
  SELECT t.id, t.task_type, t.dead_reason, t.error_type, t.completed_at,
         REGEXP_REPLACE(LEFT(SUBSTRING_INDEX(t.last_error, '\n', 1), 200), '[0-9]+', 'N') AS kind
  FROM tandemq_tasks t FORCE INDEX (open_rows)
  WHERE t.ended = 2
) AS k
GROUP BY k.task_type, k.dead_reason, k.error_type, k.kind
ORDER BY tasks DESC, last_at DESC
LIMIT 50;
