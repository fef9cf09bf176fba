-- Four users, each with what it needs and no more. Run once as an administrator, before the first `tandemq migrate`;
-- it may be run again. Put in your own passwords, the database (`tandemq`) and the hosts ('%') first:
--     sed "s/CHANGE-ME-APP/$APP/; s/CHANGE-ME-MIGRATE/$MIGRATE/; s/CHANGE-ME-READ/$READ/; s/CHANGE-ME-BACKUP/$BACKUP/" \
--         users.sql | mysql -u root -p
-- Then, after the first migrate and after each later one that brings a table: grants.sql.
-- Another prefix of the tables (TANDEMQ_TABLE_PREFIX) concerns grants.sql only.

CREATE DATABASE IF NOT EXISTS `tandemq` DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Workers, producers, the API, and people with the command line. Its rights on tables are in grants.sql.
CREATE USER IF NOT EXISTS 'tandemq_app'@'%' IDENTIFIED BY 'CHANGE-ME-APP';

-- `tandemq migrate`, and nothing that stays: makes and alters the tables and the view. It removes no row.
CREATE USER IF NOT EXISTS 'tandemq_migrate'@'%' IDENTIFIED BY 'CHANGE-ME-MIGRATE';
GRANT SELECT, INSERT, UPDATE, CREATE, ALTER, INDEX, DROP, CREATE VIEW ON `tandemq`.* TO 'tandemq_migrate'@'%';

-- People and dashboards that look with SQL. Its rights are in grants.sql.
CREATE USER IF NOT EXISTS 'tandemq_read'@'%' IDENTIFIED BY 'CHANGE-ME-READ';

-- mysqldump or mariadb-dump with --single-transaction: see runbook.md, "Backup".
CREATE USER IF NOT EXISTS 'tandemq_backup'@'%' IDENTIFIED BY 'CHANGE-ME-BACKUP';
GRANT SELECT, SHOW VIEW ON `tandemq`.* TO 'tandemq_backup'@'%';
