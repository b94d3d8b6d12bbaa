#!/usr/bin/env bash
# Builds Kubernetes' own end-to-end tests, and what they run, of the Kubernetes that edgecore is built of: bin/e2e.test, bin/ginkgo, bin/agnhost, bin/kubectl.
# What only they need stays out of go.mod: they are built with a copy of it, which the go command completes.
set -euo pipefail
dir=$PWD/build/out/conformance
mkdir -p "$dir" bin
cp go.mod go.sum "$dir/"
build=(-buildvcs=false -mod=mod -modfile="$dir/go.mod" -ldflags "-s -w ${TEST_LDFLAGS:-}")
go test -c -vet=off "${build[@]}" -o bin/e2e.test k8s.io/kubernetes/test/e2e
go build "${build[@]}" -o bin/ginkgo github.com/onsi/ginkgo/v2/ginkgo
go build "${build[@]}" -o bin/agnhost k8s.io/kubernetes/test/images/agnhost
go build "${build[@]}" -o bin/kubectl k8s.io/kubernetes/cmd/kubectl
# The certificate and the key that agnhost's image contains.
cp -f "$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)"/test/images/agnhost/porter/localhost.{crt,key} "$dir/"
chmod u+w "$dir"/localhost.*
