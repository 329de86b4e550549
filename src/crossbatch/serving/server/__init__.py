"""`crossbatch serve`: recommendations over HTTP, and a page to look at them.

    serve(Path("bundle"), ServeOptions(port=8000))        # until SIGTERM or Ctrl-C

A request passes `http_protocol` (slow and endless ones), `observe` (log, metrics, headers), `guard`
(who may ask), `app` (what is asked), `service` and `batching` (together with whom), `answers`.
"""
