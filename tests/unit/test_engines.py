"""Which driver a URL gets: the one it names, else mysqlclient where it can be imported, else PyMySQL."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandemq.core.errors import ConfigurationError
from tandemq.core.settings import MYSQL_SCHEMES, Settings
from tandemq.store import connect, engines

BROKEN = "raise ImportError('libmariadb.so.3: cannot open shared object file: No such file or directory')"


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    engines.default_driver.cache_clear()
    yield
    engines.default_driver.cache_clear()


@pytest.fixture
def mysqlclient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """``mysqlclient(state)``: "there", "broken" (its C library is missing) or "absent", whatever this machine has."""

    def make(state: str) -> None:
        monkeypatch.setitem(sys.modules, "MySQLdb", None)  # an import of it fails; what was there comes back afterwards
        if state == "absent":
            return
        del sys.modules["MySQLdb"]
        package = tmp_path / "MySQLdb"
        package.mkdir()
        (package / "__init__.py").write_text("from MySQLdb import _mysql\n")
        (package / "_mysql.py").write_text(BROKEN if state == "broken" else "")
        monkeypatch.setitem(sys.modules, "MySQLdb._mysql", None)
        del sys.modules["MySQLdb._mysql"]
        monkeypatch.syspath_prepend(tmp_path)

    return make


def drivername(url: str) -> str:
    return engines.url_of(Settings(database_url=url, redis_url="redis://x")).drivername


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
@pytest.mark.parametrize(
    ("state", "driver"), [("there", "mysql+mysqldb"), ("absent", "mysql+pymysql"), ("broken", "mysql+pymysql")]
)
def test_a_url_that_names_no_driver_takes_mysqlclient_where_it_works(
    mysqlclient: Callable[[str], None], scheme: str, state: str, driver: str
) -> None:
    mysqlclient(state)

    assert drivername(f"{scheme}://u@h/d") == driver


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
@pytest.mark.parametrize("driver", ["pymysql", "mysqldb"])
@pytest.mark.parametrize("state", ["there", "absent", "broken"])
def test_a_driver_that_is_named_stays_whatever_is_installed(
    mysqlclient: Callable[[str], None], scheme: str, driver: str, state: str
) -> None:
    mysqlclient(state)

    assert drivername(f"{scheme}+{driver}://u@h/d") == f"mysql+{driver}"


def test_without_a_named_driver_an_engine_of_pymysql_can_be_built(mysqlclient: Callable[[str], None]) -> None:
    mysqlclient("broken")
    url = engines.url_of(Settings(database_url="mariadb://u@h/d", redis_url="redis://x"))

    engine = engines.build(url, clock=None)  # type: ignore[arg-type]

    assert engine.dialect.loaded_dbapi.__name__ == "pymysql"


@pytest.mark.parametrize("scheme", MYSQL_SCHEMES)
def test_every_scheme_of_the_settings_becomes_a_dialect_for_both_servers(scheme: str) -> None:
    given = f"{scheme}://u:p%40ss@h:3307/d?charset=latin1&unix_socket=/run/s"

    url = engines.url_of(Settings(database_url=given, redis_url="redis://x"))

    assert url.drivername in {"mysql+pymysql", "mysql+mysqldb"}
    assert url.get_dialect().name == "mysql"  # SQLAlchemy's "mariadb" refuses to speak to MySQL
    assert (url.username, url.password, url.host, url.port, url.database) == ("u", "p@ss", "h", 3307, "d")
    assert url.query == {"charset": "utf8mb4", "unix_socket": "/run/s"}


@pytest.mark.parametrize("rest", ["localhost/d", "localhost:3307/d", "h/d?ssl_ca=/x", "h/d?connect_timeout=3"])
def test_a_url_that_the_drivers_read_differently_takes_pymysql(mysqlclient: Callable[[str], None], rest: str) -> None:
    mysqlclient("there")
    assert drivername(f"mysql://u@{rest}") == "mysql+pymysql"
    assert drivername("mysql://u@h/d?unix_socket=/run/s") == "mysql+mysqldb"


def test_a_certificate_is_checked_by_mysqlclient_too() -> None:
    def query(url: str) -> dict[str, object]:
        return dict(engines.url_of(Settings(database_url=url, redis_url="redis://x")).query)

    assert query("mysql+mysqldb://u@h/d?ssl_ca=/x")["ssl_mode"] == "VERIFY_IDENTITY"
    assert query("mysql+mysqldb://u@h/d?ssl_ca=/x&ssl_mode=VERIFY_CA")["ssl_mode"] == "VERIFY_CA"
    assert "ssl_mode" not in query("mysql+pymysql://u@h/d?ssl_ca=/x")


@pytest.mark.parametrize(("option", "told"), [("nonsense=1", "'nonsense'"), ("connect_timeout=soon", "soon")])
def test_an_option_that_no_driver_knows_is_a_fault_of_the_settings(option: str, told: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option of TANDEMQ_DATABASE_URL .*{told}"):
        connect(Settings(database_url=f"mysql+pymysql://u@127.0.0.1:1/d?{option}", redis_url="redis://x")).ping()


def test_a_driver_that_is_not_installed_is_named_with_the_cure(mysqlclient: Callable[[str], None]) -> None:
    mysqlclient("absent")
    with pytest.raises(ConfigurationError, match=r"pip install 'tandemq\[fast\]'"):
        connect(Settings(database_url="mysql+mysqldb://u@h/d", redis_url="redis://x"))
