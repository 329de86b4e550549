# crossbatch for CPUs: serves a bundle, and runs every other command.
#
#   docker build --tag crossbatch:latest .
#   docker run --publish 127.0.0.1:8000:8000 --volume "$PWD/shop.bundle:/bundle:ro" \
#     --env CROSSBATCH_TOKEN="$(openssl rand -hex 32)" crossbatch:latest
#   docker run --volume "$PWD:/work" --workdir /work crossbatch:latest train --data shop --out runs/first
FROM python:3.13-slim AS build
# PyTorch's builds without CUDA, a tenth of the size; an empty argument takes the default ones.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/crossbatch
COPY constraints.txt /src/
RUN /opt/crossbatch/bin/pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} --constraint /src/constraints.txt torch
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN /opt/crossbatch/bin/pip install --constraint /src/constraints.txt "/src[serve,ann]"

FROM python:3.13-slim
COPY --from=build /opt/crossbatch /opt/crossbatch
RUN useradd --uid 10001 --create-home crossbatch
ENV PATH=/opt/crossbatch/bin:$PATH PYTHONUNBUFFERED=1
# by number, so that Kubernetes can tell that it is not root
USER 10001
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["crossbatch"]
# Outside of loopback the server wants a token: CROSSBATCH_TOKEN, or --token-file.
CMD ["serve", "/bundle", "--host", "0.0.0.0", "--port", "8000", "--watch"]
