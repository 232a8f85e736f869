# syntax=docker/dockerfile:1
# FaultSense: one image for migrate, API, worker and tick. No torch: the probe model is built elsewhere.

FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/faultsense
ENV PATH=/opt/faultsense/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# Dependencies change less often than the code: their layer comes first.
COPY requirements.lock ./
RUN pip install --require-hashes -r requirements.lock
RUN pip install 'hatchling>=1.27'
COPY pyproject.toml README.md LICENSE ./
COPY app ./app
COPY workers ./workers
COPY migrations ./migrations
RUN pip install --no-deps --no-build-isolation . && pip uninstall --yes hatchling

FROM python:3.12-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin faultsense
COPY --from=build /opt/faultsense /opt/faultsense
ENV PATH=/opt/faultsense/bin:$PATH PYTHONUNBUFFERED=1
USER 10001
# Nothing is written to disk: the root file system may be read-only.
WORKDIR /
EXPOSE 8000
ENTRYPOINT ["faultsense"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
