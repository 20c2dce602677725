"""Answers over HTTP: what `bertvision serve` runs. It needs the extra `serve` (FastAPI, uvicorn, prometheus-client).

    request -> guard.py (key, size, stopping) -> app.py (routes) -> requests.py (what is asked, or a sentence)
            -> batching.py (waits for a place, is computed with others) -> answers.py (what is told)

| file | holds |
|---|---|
| `limits.py` | all settings, and their flags |
| `guard.py` `metrics.py` | what stands around every request: limits and key; counts and clocks |
| `catalogue.py` `requests.py` `answers.py` | the tasks that are served; what may be asked; what is answered |
| `batching.py` `pace.py` | the queue and its micro-batches; how long waiting takes |
| `service.py` | the thread that owns the model |
| `app.py` `pages.py` `document.py` | the routes; the page's files; the OpenAPI document |
| `connection.py` | a client that is slow |
| `starting.py` `lifecycle.py` | signals before there is an answer; from the address to the last answer |
"""
