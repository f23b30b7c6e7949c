# Stands in for the image prom/prometheus where no registry of images can be reached: Debian's program, the user, the
# command and the folder of that image.
FROM localhost/penstock-base
COPY prometheus /bin/prometheus
RUN install --directory --owner 65534 --group 65534 /prometheus
USER 65534
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
