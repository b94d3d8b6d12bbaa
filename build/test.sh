#!/usr/bin/env bash
# test.sh short|all: runs the tests phase by phase, goes on after a phase that failed, and ends with one line for everything.
# make calls it with CGO_ENABLED and TEST_LDFLAGS set; TESTFLAGS is passed on to go test, PACKAGES (./...) says which packages.
set -uo pipefail
what=${1:?short or all}
out=build/out
mkdir -p "$out" bin
counts=$out/test-counts.jsonl
rm -f "$counts"
failed=0

go build -buildvcs=false -o bin/testsum ./build/testsum || exit 1

# phase NAME PARALLEL PACKAGE...: every test binary of PARALLEL packages is linked at the same time, at up to 3 GB each where Kubernetes is linked.
phase() {
	local name=$1 parallel=$2
	shift 2
	if [ $# -eq 0 ]; then
		return
	fi
	echo "== $name: $# packages"
	# All of vet, and not the part of it that is the default: a separate go vet would examine every dependency a second time.
	# shellcheck disable=SC2086
	go test -json -vet all -p "$parallel" -timeout 30m -ldflags "${TEST_LDFLAGS:-}" ${TESTFLAGS:-} "$@" 2>&1 | bin/testsum -counts "$counts" -phase "$name"
	case "${PIPESTATUS[*]}" in
	"0 0") ;;
	*) failed=1 ;;
	esac
}

module=$(go list -m) || exit 1
# shellcheck disable=SC2086
all=$(go list ${PACKAGES:-./...}) || exit 1
needs_root="^$module/tests/(cluster|integration|netns|e2e|bench)(/|$)"

mapfile -t packages < <(grep -vE "$needs_root" <<<"$all")
phase unit 2 "${packages[@]}"

if [ "$what" = all ]; then
	if [ "$(id -u)" -ne 0 ]; then
		echo "test: the tests with namespaces, containers and real kernels need root; 'make test-short' does without" >&2
		exit 1
	fi
	for dir in cluster integration netns e2e; do
		mapfile -t packages < <(grep -E "^$module/tests/$dir(/|$)" <<<"$all")
		phase "$dir" 1 "${packages[@]}"
	done
fi

bin/testsum -total -counts "$counts" || failed=1
exit "$failed"
