# The console command, installed from the wheel: `docker build -t electra-albert .`, then
# `docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" electra-albert pretrain --corpus my.txt`.
# The build downloads packages from the registry only; requirements.txt pins torch.
FROM python:3.11-slim AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir -r /tmp/requirements.txt
COPY --from=wheel /wheels /tmp/wheels
RUN pip install --no-cache-dir --no-deps /tmp/wheels/*.whl
ENV HOME=/tmp
USER 1000:1000
WORKDIR /work
ENTRYPOINT ["electra-albert"]
CMD ["--help"]
