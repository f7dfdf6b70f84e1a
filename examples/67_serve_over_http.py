"""Serve a model over HTTP: requests that wait are computed as one batch.

``pip install "memcfg[serve]"`` installs uvicorn, which runs `app`. A client posts an
array in NumPy's format and gets the outputs in the same format. Here both ends are in
one program: 16 threads send 400 requests.
"""

import asyncio
import io
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection

import numpy as np
import uvicorn

import memcfg as mc

MOST = 1 << 20  # bytes of a request
model = mc.models.lenet5()
inference = mc.parallel.ParallelInference(model, batch_limit=32, on_full="raise")


async def answer(body):
    """Return the status and the content of the answer to a request."""
    try:
        x = np.load(io.BytesIO(body), allow_pickle=False)
        y = await asyncio.wrap_future(inference.submit(x))
    except mc.errors.QueueFullError as error:
        return 503, str(error).encode()
    except (TypeError, ValueError, EOFError) as error:
        return 400, str(error).encode()
    content = io.BytesIO()
    np.save(content, y)
    return 200, content.getvalue()


async def app(scope, receive, send):
    """Answer one request, as ASGI says."""
    body, more = b"", True
    while more and len(body) <= MOST:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message.get("body", b"")
        more = message.get("more_body", False)
    too_long = 413, b"too many bytes"
    status, content = too_long if len(body) > MOST else await answer(body)
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": content})


def post(port, x):
    """Send an array; return the status and the answer."""
    body = io.BytesIO()
    np.save(body, x)
    with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("POST", "/", body.getvalue())
        response = connection.getresponse()
        return response.status, response.read()


if __name__ == "__main__":
    here = socket.create_server(("127.0.0.1", 0), backlog=64)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning"))
    thread = threading.Thread(target=server.run, args=([here],))
    thread.start()
    x = np.random.default_rng(0).random((400, 32, 32, 1), np.float32)
    with ThreadPoolExecutor(16) as clients:
        port = here.getsockname()[1]
        answers = list(clients.map(lambda i: post(port, x[i : i + 1]), range(400)))
    server.should_exit = True
    thread.join()
    inference.close()
    y = np.concatenate([np.load(io.BytesIO(content)) for _, content in answers])
    print(sum(inference.stats().batches), "batches for", len(y), "requests")
    assert np.allclose(y, model.predict(x, verbose=0), atol=1e-6)
