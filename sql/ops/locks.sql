-- Which transactions are open, since when, what do they hold, and which of them wait for a lock?
--
-- tandemq's own transactions take milliseconds. One that is seconds old belongs to a handler that takes "tx", to the
-- application that enqueues within its own transaction, or to somebody at a console. Who waits for whom: on MySQL
-- SELECT * FROM sys.innodb_lock_waits, on MariaDB information_schema.innodb_lock_waits.
-- Needs the right PROCESS. Costs: next to nothing. Takes no locks.

SELECT x.trx_mysql_thread_id AS thread_id, x.trx_state, x.trx_started,
       TIMESTAMPDIFF(SECOND, x.trx_started, NOW()) AS open_s, x.trx_rows_locked, x.trx_rows_modified,
       TIMESTAMPDIFF(SECOND, x.trx_wait_started, NOW()) AS waits_s, p.user, p.host, p.command, LEFT(x.trx_query, 200) AS query
FROM information_schema.innodb_trx x
LEFT JOIN information_schema.processlist p ON p.id = x.trx_mysql_thread_id
ORDER BY x.trx_started
LIMIT 50;
