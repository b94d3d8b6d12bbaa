#!/usr/bin/env bash
# test.sh short|all|long: runs the tests phase by phase, goes on after a phase that failed, and ends with one line for everything.
# make calls it with CGO_ENABLED and TEST_LDFLAGS set; TESTFLAGS is passed on to go test, PACKAGES (./...) says which packages.
# The tests with whole trials mostly wait: they run in SHARDS (2) parts, each with a trial of its own. These parts and all others are jobs, of which LANES (3) run
# beside each other. A job is printed whole when it ends.
set -uo pipefail
what=${1:?short, all or long}
shards=${SHARDS:-2} lanes=${LANES:-3}
out=build/out
mkdir -p "$out" bin
counts=$out/test-counts.jsonl again=$out/test-again
rm -rf "$counts" "$again" "$out"/test-*.log "$out"/test-*.log.done
mkdir -p "$again"
failed=0

# What all leaves to long, each minutes of a whole machine. Of the first two, all runs another part; kube-vip, which must be compiled, it leaves out altogether,
# but for the tests beside cloud/internal/kubevip.
longer='^TestTraps_09_VIPsWithIPVS$/^the_others$|^TestOrder_14_ShortCampaigns$/^seed_(2|14)$|^TestServices_14_KubeVIP$'
select=()
case $what in all) select=(-skip "$longer") ;; long) select=(-run "$longer") ;; esac

go build -buildvcs=false -o bin/testsum ./build/testsum || exit 1

# run NAME PARALLEL SUMMARY-FLAGS PACKAGE...: every test binary of PARALLEL packages is linked at the same time, at up to 3 GB each where Kubernetes is linked.
# The longest job takes some 30 minutes.
run() {
	local name=$1 parallel=$2 flags=$3
	shift 3
	# shellcheck disable=SC2086
	go test -json -vet off -p "$parallel" -timeout 75m -ldflags "${TEST_LDFLAGS:-}" ${TESTFLAGS:-} "${select[@]}" "$@" 2>&1 |
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
	local ok=0 TIMEFORMAT="== $name took %0R s; its programs had a processor for %0U s, and the kernel for %0S s"
	time run "$name" "$parallel" "-again $file" "$@" || ok=1
	if [ "$ok" -eq 0 ]; then
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
	: >"$log.done"
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
# Beside the code, but with a control plane, keepalived or the kernel: those of one side one at a time, so that they don't take the time from each other.
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

# The jobs, which run beside each other. Each has networks, control planes or a kernel of its own; what would meet, as control planes of the same ports do, is in one.

# each DIRECTORY...: the packages of tests/DIRECTORY, one directory after the other.
each() {
	local packages dir
	for dir in "$@"; do
		mapfile -t packages < <(below "$dir")
		phase "$dir" 1 "${packages[@]}"
	done
}

# code: what needs the code alone.
code() {
	local packages
	mapfile -t packages < <(grep -vE "$needs_root" <<<"$all" | grep -vE "$real")
	phase unit 2 "${packages[@]}"
}

# campaign: the package itself; those below it need the code alone.
campaign() {
	local packages
	mapfile -t packages < <(grep -x "$module/tests/campaign" <<<"$all")
	phase campaign 1 "${packages[@]}"
}

# planes: what needs control planes, and no device.
planes() {
	each cluster integration hostile
	campaign
}

# real edge|cloud: the packages beside the code that need the real thing.
real() {
	local packages
	mapfile -t packages < <(grep -E "$real" <<<"$all" | grep "^$module/$1/")
	phase "real $1" 1 "${packages[@]}"
}

# shard N: a part of the tests with whole trials.
shard() {
	local packages
	mapfile -t packages < <(below e2e)
	export SKERRY_E2E_SHARD=$1/$shards
	phase "e2e $1 of $shards" 1 "${packages[@]}"
}

# take: prints the number of the first job that no lane has, which is the caller's then.
take() {
	flock "$again" sh -c 'n=$(cat "$0" 2>/dev/null || echo 0); echo "$n"; echo $((n + 1)) >"$0"' "$again/.taken"
}

# lane: runs jobs until none is left.
lane() {
	local n
	while n=$(take) && [ "$n" -lt ${#jobs[@]} ]; do
		# shellcheck disable=SC2086
		apart "${jobs[n]}" ${jobs[n]}
	done
}

# progress: a line each minute for each job that runs.
progress() {
	local log
	while sleep 60; do
		echo "   after $((SECONDS / 60)) min, load $(cut -d ' ' -f 1 /proc/loadavg):"
		for log in "$out"/test-*.log; do
			[ -e "$log.done" ] || echo "   ${log#"$out"/}: $(tail -n 1 "$log")"
		done
	done
}

# examine: all of vet, and not the part of it that is go test's default. On a bare machine it reads all of Kubernetes, which takes a processor some nine minutes:
# beside the long tests there is no time for it, and make verify does it.
examine() {
	# shellcheck disable=SC2086
	go vet $all && return
	echo "== vet: FAILED"
	touch "$again/failed"
}

# beside: all jobs, in lanes.
beside() {
	local n job ticker
	for ((n = 1; n <= lanes; n++)); do
		lane &
	done
	progress &
	ticker=$!
	for job in $(jobs -p); do
		[ "$job" = "$ticker" ] || wait "$job"
	done
	kill "$ticker"
}

# The longest first, so that the lanes end together.
jobs=()
for ((n = 1; n <= shards; n++)); do jobs+=("shard $n"); done
jobs+=("each site" planes "real cloud" "real edge" code "each apps" "each uml vm netns" "each incluster" "each services")
[ "$what" != long ] || jobs=("each uml" "each services" campaign)
if [ "$what" = short ]; then
	examine
	code
else
	if [ "$(id -u)" -ne 0 ]; then
		echo "test: the tests with namespaces, containers and real kernels need root; 'make test-short' does without" >&2
		exit 1
	fi
	roomForKubelets
	if [ "$what" = all ] && below e2e >/dev/null; then
		beside
	else # few, for somebody who waits for them
		for job in "${jobs[@]}"; do
			# shellcheck disable=SC2086
			$job
		done
	fi
fi
retry

bin/testsum -total -counts "$counts" || failed=1
exit "$failed"
