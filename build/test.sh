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

# run NAME PARALLEL SUMMARY-FLAGS PACKAGE...: every test binary of PARALLEL packages is linked at the same time, at up to 3 GB each where Kubernetes is linked.
run() {
	local name=$1 parallel=$2 flags=$3
	shift 3
	# All of vet, and not the part of it that is the default: a separate go vet would examine every dependency a second time.
	# shellcheck disable=SC2086
	go test -json -vet all -p "$parallel" -timeout 40m -ldflags "${TEST_LDFLAGS:-}" ${TESTFLAGS:-} "$@" 2>&1 |
		bin/testsum -counts "$counts" -phase "$name" $flags
	[ "${PIPESTATUS[*]}" = "0 0" ]
}

# phase NAME PARALLEL PACKAGE...: runs the packages, and those that failed once more, alone: the tests run real kernels, kubelets and elections, and a machine
# that was busy with something else for a while is no fault of theirs. What failed is printed either way; what fails twice has failed.
phase() {
	local name=$1 parallel=$2 again=$out/test-again
	shift 2
	if [ $# -eq 0 ]; then
		return
	fi
	echo "== $name: $# packages"
	rm -f "$again"
	if run "$name" "$parallel" "-again $again" "$@"; then
		return
	fi
	local packages=()
	[ -f "$again" ] && mapfile -t packages <"$again"
	if [ "${#packages[@]}" -eq 0 ]; then
		failed=1
		return
	fi
	for package in "${packages[@]}"; do
		echo "== $name: FAILED, once more, alone: $package"
		run "$name, second try" 1 "" "$package" || failed=1
	done
}

module=$(go list -m) || exit 1
# shellcheck disable=SC2086
all=$(go list ${PACKAGES:-./...}) || exit 1
needs_root="^$module/tests/(cluster|integration|netns|uml|e2e|bench)(/|$)"
# Beside the code, but with a control plane, keepalived or the kernel: one at a time, so that they don't take the time from each other.
real="^$module/(edge/internal/(vip|route|drain|kernel/.*)|cloud/internal/(publish|relay|join|route|vip|aggregate))$"

mapfile -t packages < <(grep -vE "$needs_root" <<<"$all" | grep -vE "$real")
phase unit 2 "${packages[@]}"

if [ "$what" = all ]; then
	if [ "$(id -u)" -ne 0 ]; then
		echo "test: the tests with namespaces, containers and real kernels need root; 'make test-short' does without" >&2
		exit 1
	fi
	mapfile -t packages < <(grep -E "$real" <<<"$all")
	phase real 1 "${packages[@]}"
	for dir in cluster integration netns uml e2e; do
		mapfile -t packages < <(grep -E "^$module/tests/$dir(/|$)" <<<"$all")
		phase "$dir" 1 "${packages[@]}"
	done
fi

bin/testsum -total -counts "$counts" || failed=1
exit "$failed"
