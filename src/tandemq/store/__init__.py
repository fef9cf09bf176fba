"""The truth: tasks, claims and attempts in MySQL, MariaDB or SQLite. The only package that imports SQLAlchemy."""
