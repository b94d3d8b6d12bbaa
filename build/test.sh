#!/usr/bin/env bash
# test.sh short|all: runs the tests phase by phase, goes on after a phase that failed, and ends with one line for everything.
# make calls it with CGO_ENABLED and TEST_LDFLAGS set; TESTFLAGS is passed on to go test, PACKAGES (./...) says which packages.
# The tests with whole trials mostly wait: they run in SHARDS (2) parts, each with a trial of its own, beside each other and beside the
# two lanes of all others. A phase that runs beside others is printed whole when it ends.
set -uo pipefail
what=${1:?short or all}
shards=${SHARDS:-2}
out=build/out
mkdir -p "$out" bin
counts=$out/test-counts.jsonl again=$out/test-again
rm -rf "$counts" "$again" "$out"/test-*.log
mkdir -p "$again"
failed=0

go build -buildvcs=false -o bin/testsum ./build/testsum || exit 1

# run NAME PARALLEL SUMMARY-FLAGS PACKAGE...: every test binary of PARALLEL packages is linked at the same time, at up to 3 GB each where Kubernetes is linked.
# On a bare machine all of Kubernetes is compiled and vetted beside the first trials: the shards took 29 minutes warm, and more than 40 there.
run() {
	local name=$1 parallel=$2 flags=$3
	shift 3
	# All of vet, and not the part of it that is the default: a separate go vet would examine every dependency a second time.
	# shellcheck disable=SC2086
	go test -json -vet all -p "$parallel" -timeout 75m -ldflags "${TEST_LDFLAGS:-}" ${TESTFLAGS:-} "$@" 2>&1 |
		bin/testsum -counts "$counts" -phase "$name" $flags
	[ "${PIPESTATUS[*]}" = "0 0" ]
}

# phase NAME PARALLEL PACKAGE...: runs the packages, and puts those that failed on the list for retry.
phase() {
	local name=$1 parallel=$2 file=$again/${1//[ \/]/-}
	shift 2
	if [ $# -eq 0 ]; then
		return
	fi
	echo "== $name: $# packages"
	rm -f "$file"
	if run "$name" "$parallel" "-again $file" "$@"; then
		rm -f "$file"
		return
	fi
	# Nothing to be tried again: too much has failed, or the phase did not get as far.
	[ -s "$file" ] || touch "$again/failed"
}

# apart NAME COMMAND...: runs a command beside others and prints what it said at its end, whole.
apart() {
	local name=$1 log
	shift
	log=$out/test-${name//[ \/]/-}.log
	echo "== $name: begins, beside the others; so far: $log"
	"$@" >"$log" 2>&1
	flock "$again" cat "$log"
}

# retry: runs the tests that failed once more, one package after the other and nothing beside it: they run real kernels, kubelets and elections, and a machine
# that was busy with something else for a while is no fault of theirs. Where a package did not run all its tests, it is run whole. What failed was printed; what
# fails twice has failed.
retry() {
	local file package tests
	for file in "$again"/*; do
		[ "$(basename "$file")" != failed ] && [ -f "$file" ] || continue
		while read -r package tests; do
			echo "== FAILED, once more, alone: $package $tests ($(basename "$file"))"
			export SKERRY_E2E_SHARD=
			case $tests:$(basename "$file") in :*-*-of-*) SKERRY_E2E_SHARD=$(basename "$file" | sed 's/^[a-z0-9]*-//; s/-of-/\//') ;; esac
			run "$(basename "$file"), second try" 1 "" "$package" ${tests:+-run "$tests"} || failed=1
		done <"$file"
	done
	[ ! -e "$again/failed" ] || failed=1
}

module=$(go list -m) || exit 1
# shellcheck disable=SC2086
all=$(go list ${PACKAGES:-./...}) || exit 1
needs_root="^$module/tests/((cluster|integration|hostile|netns|uml|vm|e2e|site|apps|services|incluster|bench|release)(/|$)|campaign$)"
# Beside the code, but with a control plane, keepalived or the kernel: one at a time, so that they don't take the time from each other.
real="^$module/(edge/internal/(vip|route|drain|kernel/.*)|cloud/internal/(publish|relay|join|route|vip|aggregate))$"

# roomForKubelets: each kubelet and containerd takes some of the machine's inotify instances, of which Linux gives a user 128 (inotify(7)); a dozen nodes of
# trials side by side need more. What was there before is put back at the end.
roomForKubelets() {
	local limit=/proc/sys/fs/inotify/max_user_instances had
	had=$(cat "$limit") || return 0
	[ "$had" -lt 1024 ] && echo 1024 >"$limit" || return 0
	trap "echo $had >$limit" EXIT
}

# below DIRECTORY: the packages of tests/DIRECTORY.
below() { grep -E "^$module/tests/$1(/|$)" <<<"$all"; }

# code: what needs the code alone, control planes of its own, and kernels that it brings.
code() {
	local packages dir
	mapfile -t packages < <(grep -vE "$needs_root" <<<"$all" | grep -vE "$real")
	phase unit 2 "${packages[@]}"
	[ "$what" = all ] || return
	for dir in cluster integration hostile; do
		mapfile -t packages < <(below "$dir")
		phase "$dir" 1 "${packages[@]}"
	done
	mapfile -t packages < <(grep -x "$module/tests/campaign" <<<"$all")
	phase campaign 1 "${packages[@]}"
	for dir in netns uml vm; do
		mapfile -t packages < <(below "$dir")
		phase "$dir" 1 "${packages[@]}"
	done
}

# kernels: what needs the machine's kernel, and mostly waits for it; and the trial whose cloud is a Deployment, since this lane is the shortest.
kernels() {
	local packages
	mapfile -t packages < <(grep -E "$real" <<<"$all")
	phase real 1 "${packages[@]}"
	[ "$what" = all ] || return
	mapfile -t packages < <(below incluster)
	phase incluster 1 "${packages[@]}"
}

# places: packages that have a whole trial each, one after the other.
places() {
	local packages dir
	for dir in site services apps; do
		mapfile -t packages < <(below "$dir")
		phase "$dir" 1 "${packages[@]}"
	done
}

# shard N PACKAGE...: a part of the tests with whole trials.
shard() {
	export SKERRY_E2E_SHARD=$1/$shards
	phase "e2e $1 of $shards" 1 "${@:2}"
}

e2e=()
if [ "$what" = all ]; then
	if [ "$(id -u)" -ne 0 ]; then
		echo "test: the tests with namespaces, containers and real kernels need root; 'make test-short' does without" >&2
		exit 1
	fi
	mapfile -t e2e < <(below e2e)
	roomForKubelets
fi
if [ "$what" != all ]; then
	code
elif [ ${#e2e[@]} -eq 0 ]; then
	code
	kernels
	places
else
	# Compiled and examined once, and not by all parts at the same time.
	go test -vet all -exec true -ldflags "${TEST_LDFLAGS:-}" "${e2e[@]}" >/dev/null 2>&1
	for ((n = 1; n <= shards; n++)); do
		apart "e2e $n of $shards" shard "$n" "${e2e[@]}" &
	done
	apart "code" code &
	apart "kernels" kernels &
	apart "places" places &
	while sleep 60; do # show progress
		for log in "$out"/test-*.log; do
			echo "   ${log#"$out"/}: $(tail -n 1 "$log")"
		done
	done &
	ticker=$!
	for job in $(jobs -p); do
		[ "$job" = "$ticker" ] || wait "$job"
	done
	kill "$ticker"
fi
retry

bin/testsum -total -counts "$counts" || failed=1
exit "$failed"
