"""`crossbatch serve`: recommendations over HTTP, and a web page that shows them.

    serve(Path("bundle"), ServeOptions(port=8000))        # until SIGTERM or Ctrl-C

A request passes `monitoring` (metrics, log, headers), `guard` (token, size, speed), `app` (paths),
`service` (batches) and `answers` (search and JSON).
"""
