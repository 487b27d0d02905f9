# Two stages: the first builds the wheel, the second has Python, the daemon, and no compiler.
#   docker build --tag hami-plugin:0.1.0 .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
# gcc is for simulated machines only; every dependency comes as a wheel.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /build
COPY requirements.lock requirements-build.lock .
# The kubernetes package reads credentials here; its generated calls and models, 120 MB, are left out.
RUN python -m venv --without-pip /opt/hami-plugin \
    && python -m pip --python /opt/hami-plugin/bin/python install --no-cache-dir --require-hashes --only-binary :all: --requirement requirements.lock \
    && find /opt/hami-plugin/lib -type f -regex '.*/kubernetes/\(aio/\)?client/\(api\|models\)/.*' ! -name '__init__.*' -delete \
    && python -m pip install --no-cache-dir --require-hashes --only-binary :all: --requirement requirements-build.lock
COPY . .
RUN python -m hatchling build --target wheel \
    && python -m pip --python /opt/hami-plugin/bin/python install --no-cache-dir --no-deps dist/*.whl
# Compile what simulated machines need, so that the second stage can simulate them without a compiler.
ENV XDG_CACHE_HOME=/opt/hami-plugin/cache
RUN /opt/hami-plugin/bin/hami-plugin discover --simulate dgx-h100 \
    && /opt/hami-plugin/bin/hami-plugin discover --simulate ascend-910b3-8 \
    && chmod -R a+rX /opt/hami-plugin

FROM ${BASE}
COPY --from=build /opt/hami-plugin /opt/hami-plugin
ENV PATH=/opt/hami-plugin/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/opt/hami-plugin/cache
# User 0, since the kubelet's device-plugins and pod-resources directories belong to root and are closed to others.
# It needs no capability (see daemonset.yaml). Commands that only look run as anybody:
#   docker run --rm --user 65534 hami-plugin:0.1.0 vendors
USER 0
ENTRYPOINT ["hami-plugin"]
CMD ["run"]
