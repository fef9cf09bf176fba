-- What the users of users.sql may do with each table. Run as an administrator after each `tandemq migrate`; it may be run
-- again. Until then `tandemq migrate --check` fails and workers of the new version do not start: both name what is lacking.
-- Nobody but an administrator can take a row out of the audit log, and no worker can change the schema.

-- Where the tables are in a database that holds nothing else, one line does instead of these and needs no second run:
--     GRANT SELECT, INSERT, UPDATE, DELETE ON `tandemq`.* TO 'tandemq_app'@'%';
-- The price: whoever has the application's password can empty the audit log.

GRANT SELECT, INSERT, UPDATE, DELETE ON `tandemq`.`tandemq_tasks` TO 'tandemq_app'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `tandemq`.`tandemq_claims` TO 'tandemq_app'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `tandemq`.`tandemq_task_attempts` TO 'tandemq_app'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `tandemq`.`tandemq_task_counts` TO 'tandemq_app'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `tandemq`.`tandemq_workers` TO 'tandemq_app'@'%';
GRANT SELECT, INSERT, UPDATE ON `tandemq`.`tandemq_leaders` TO 'tandemq_app'@'%';
GRANT SELECT, INSERT, UPDATE ON `tandemq`.`tandemq_queues` TO 'tandemq_app'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `tandemq`.`tandemq_pauses` TO 'tandemq_app'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `tandemq`.`tandemq_held` TO 'tandemq_app'@'%';
GRANT SELECT, INSERT, UPDATE, DELETE ON `tandemq`.`tandemq_kills` TO 'tandemq_app'@'%';
GRANT SELECT, INSERT, UPDATE ON `tandemq`.`tandemq_api_tokens` TO 'tandemq_app'@'%';
GRANT SELECT, INSERT, UPDATE ON `tandemq`.`tandemq_replay_runs` TO 'tandemq_app'@'%';
GRANT SELECT, INSERT, UPDATE ON `tandemq`.`tandemq_replay_items` TO 'tandemq_app'@'%';
GRANT SELECT, UPDATE ON `tandemq`.`tandemq_meta` TO 'tandemq_app'@'%';
GRANT SELECT ON `tandemq`.`tandemq_migrations` TO 'tandemq_app'@'%';
GRANT SELECT ON `tandemq`.`tandemq_tasks_view` TO 'tandemq_app'@'%';
-- One column: a deed that takes many transactions counts them in its own row.
GRANT SELECT, INSERT, UPDATE (n) ON `tandemq`.`tandemq_audit_log` TO 'tandemq_app'@'%';

GRANT SELECT ON `tandemq`.`tandemq_tasks` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_tasks_view` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_claims` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_task_attempts` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_task_counts` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_workers` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_leaders` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_queues` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_pauses` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_held` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_kills` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_replay_runs` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_replay_items` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_meta` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_migrations` TO 'tandemq_read'@'%';
GRANT SELECT ON `tandemq`.`tandemq_audit_log` TO 'tandemq_read'@'%';
-- All but their hashes.
GRANT SELECT (id, name, roles, rate, created_at, created_by, expires_at, revoked_at, last_used_at) ON `tandemq`.`tandemq_api_tokens` TO 'tandemq_read'@'%';
