# The ROCm images: what must be compiled for the GPU, on a base that has ROCm and, mostly, torch. Releases
# and GPUs differ in arguments alone, all of which stand in docker/matrix.toml. The context is what
# `slipway image matrix --bake` writes.
ARG BASE
FROM ${BASE} AS base

FROM base AS install
# hadolint ignore=DL3002
USER 0:0
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG VENV=/opt/keel/venv
ENV PYTHONDONTWRITEBYTECODE=1 \
    GIT_TERMINAL_PROMPT=0 \
    PIP_NO_BUILD_ISOLATION=0 \
    PIP_NO_COMPILE=1 \
    PIP_NO_DEPS=1
COPY venv/ ${VENV}/

# torch where the base has none; everything after it compiles against the torch that is there, and
# nothing can replace it: PIP_NO_DEPS, and a lock without torch.
ARG BASE_TORCH=
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=bind,source=pip.zip,target=/run/slipway/pip.zip \
    if [ -n "${BASE_TORCH}" ]; then \
        PIP_NO_DEPS=0 "${VENV}/bin/python" /run/slipway/pip.zip/pip install "${BASE_TORCH}"; \
    fi

RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=bind,source=pip.zip,target=/run/slipway/pip.zip \
    --mount=type=bind,source=lock.txt,target=/run/slipway/lock.txt \
    "${VENV}/bin/python" /run/slipway/pip.zip/pip install \
        --require-hashes --requirement /run/slipway/lock.txt

# A step each, so that a new commit of one compiles that one again and those after it.
ARG BUILD_TRITON=0
ARG TRITON_REPO=https://github.com/ROCm/triton.git
ARG TRITON_COMMIT
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=bind,source=pip.zip,target=/run/slipway/pip.zip \
    if [ "${BUILD_TRITON}" = 1 ]; then \
        git clone --filter=blob:none "${TRITON_REPO}" /src/triton \
        && git -C /src/triton checkout --detach "${TRITON_COMMIT}" \
        && "${VENV}/bin/python" /run/slipway/pip.zip/pip install /src/triton; \
    fi

ARG GPU_ARCH
ARG BUILD_AITER_ALL=1
ARG AITER_REPO=https://github.com/ROCm/aiter.git
ARG AITER_COMMIT
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=bind,source=pip.zip,target=/run/slipway/pip.zip \
    git clone --filter=blob:none "${AITER_REPO}" /src/aiter \
    && git -C /src/aiter checkout --detach "${AITER_COMMIT}" \
    && git -C /src/aiter submodule update --init --recursive \
    && GPU_ARCHS="${GPU_ARCH:?}" PREBUILD_KERNELS="${BUILD_AITER_ALL}" \
        "${VENV}/bin/python" /run/slipway/pip.zip/pip install /src/aiter

ARG BUILD_MOONCAKE=0
ARG MOONCAKE_REPO=https://github.com/kvcache-ai/Mooncake.git
ARG MOONCAKE_COMMIT
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=bind,source=pip.zip,target=/run/slipway/pip.zip \
    if [ "${BUILD_MOONCAKE}" = 1 ]; then \
        git clone --recurse-submodules --branch "${MOONCAKE_COMMIT}" "${MOONCAKE_REPO}" /src/mooncake \
        && cmake -S /src/mooncake -B /src/mooncake/build -DUSE_HIP=ON \
        && cmake --build /src/mooncake/build --parallel \
        && OUTPUT_DIR=dist /src/mooncake/scripts/build_wheel.sh \
        && "${VENV}/bin/python" /run/slipway/pip.zip/pip install /src/mooncake/mooncake-wheel/dist/*.whl; \
    fi

FROM scratch AS layer
ARG VENV=/opt/keel/venv
COPY --from=install ${VENV}/ ${VENV}/

FROM base AS deps
ARG VENV=/opt/keel/venv
ARG HSA_ENABLE_IPC_MODE_LEGACY=0
COPY --from=install ${VENV}/ ${VENV}/
ENV PATH=${VENV}/bin:${PATH} \
    VIRTUAL_ENV=${VENV} \
    HOME=/tmp \
    USER=keel \
    PYTHONUNBUFFERED=1 \
    HSA_ENABLE_IPC_MODE_LEGACY=${HSA_ENABLE_IPC_MODE_LEGACY}
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["keel"]
CMD ["--help"]

FROM deps AS image
ARG SOURCE=/opt/keel/src
ARG CONTENT
COPY source/ ${SOURCE}/
ENV PYTHONPYCACHEPREFIX=/tmp/pycache-${CONTENT}
