-- Which tasks carry the most, among the newest 100,000, and which types fill the table?
--
-- Costs: reads the newest 100,000 rows, their payloads and results with them: seconds, and it pushes other pages out of the
-- buffer pool. Takes no locks.

SELECT s.id, s.queue, s.task_type, s.status, s.payload_bytes, s.result_bytes, s.error_bytes
FROM (
  SELECT t.id, t.queue, t.task_type, t.status, LENGTH(t.payload) AS payload_bytes,
         COALESCE(LENGTH(t.result), 0) AS result_bytes, COALESCE(LENGTH(t.last_error), 0) AS error_bytes
  FROM tandemq_tasks t
  ORDER BY t.id DESC
  LIMIT 100000
) AS s
ORDER BY s.payload_bytes + s.result_bytes + s.error_bytes DESC, s.id DESC
LIMIT 50;

SELECT s.task_type, COUNT(*) AS tasks, SUM(s.bytes) AS bytes, ROUND(AVG(s.bytes)) AS mean_bytes, MAX(s.bytes) AS most_bytes
FROM (
  SELECT t.task_type,
         LENGTH(t.payload) + COALESCE(LENGTH(t.result), 0) + COALESCE(LENGTH(t.last_error), 0) AS bytes
  FROM tandemq_tasks t
  ORDER BY t.id DESC
  LIMIT 100000
) AS s
GROUP BY s.task_type
ORDER BY bytes DESC
LIMIT 50;
