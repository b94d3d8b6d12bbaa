# The image of manifests/deployment: one static program. Build it from the top of the repository, after make build-cloudcore:
#   docker build -f build/image/cloudcore.Dockerfile -t REGISTRY/cloudcore:VERSION .
FROM scratch
COPY bin/cloudcore /cloudcore
USER 65532:65532
ENTRYPOINT ["/cloudcore"]
