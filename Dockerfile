# Laid out and built by `make image`, which makes the three folders: a layer each, the one that changes most last.
# The first has Debian's Python, or only links to Python for a base of another name:
#   make image BASE=registry.example/python:3.11-slim
# The name is that of daemonset.yaml: hami-plugin:0.1.0.
ARG BASE=scratch
FROM ${BASE}
COPY base/ /
COPY requirements/ /
COPY project/ /
# The last two save memory: one heap for all threads, and tracebacks that name a line but no column.
ENV PATH=/opt/hami-plugin/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    XDG_CACHE_HOME=/opt/hami-plugin/cache \
    MALLOC_ARENA_MAX=1 \
    PYTHONNODEBUGRANGES=1
# User 0, since the kubelet's device-plugins and pod-resources directories belong to root and are closed to others.
# It needs no capability (see daemonset.yaml). Commands that only look run as anybody, on a read-only root:
#   podman run --rm --user 65534 --read-only hami-plugin:0.1.0 vendors
USER 0
WORKDIR /
ENTRYPOINT ["hami-plugin"]
CMD ["run"]
