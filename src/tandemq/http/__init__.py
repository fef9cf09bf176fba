"""The HTTP API: an ASGI application over the same core. Needs the extra ``tandemq[http]``.

``routes`` is the one table of what there is; the router, the OpenAPI document and the tests that walk every route are
made from it. Handlers translate: a request into a call of the core, an answer or an error into JSON.
"""

from tandemq.http.api import Api, asgi
from tandemq.http.options import ApiOptions

__all__ = ["Api", "ApiOptions", "asgi"]
