#!/usr/bin/env bash
# Runs the unit tests with -race, which needs cgo. Packages that import Kubernetes' clients are left out: they would be compiled a second time, which
# takes longer than the tests are worth in a daily run.
set -euo pipefail
export CGO_ENABLED=1
if ! command -v "$(go env CC)" >/dev/null; then
	echo "race: the race detector needs a C compiler: apt-get install gcc libc6-dev" >&2
	exit 1
fi
# shellcheck disable=SC2086
mapfile -t packages < <(go list -f '{{.ImportPath}} {{join .Deps " "}} ' ${PACKAGES:-./...} |
	grep -vE ' k8s\.io/(client-go|apiserver|kubernetes|kubectl)/|^[^ ]*/tests/(cluster|integration|netns|e2e|bench)[/ ]' | cut -d ' ' -f 1)
# shellcheck disable=SC2086
go test -race -vet off -p 1 ${TESTFLAGS:-} "${packages[@]}" | grep -v 'no test files'
