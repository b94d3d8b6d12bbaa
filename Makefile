# Skerry's targets. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# One set of flags for building and testing: compiled packages are then shared, and Kubernetes is compiled once.
export CGO_ENABLED := 0
# As Kubernetes builds its own programs. Without this tag gRPC brings pages for debugging along that nothing shows, and with them a third more of edgecore
# (docs/dev/decisions/0071-what-the-binaries-hold.md).
# Nor does a program have what debuggers read, which would take a fifth of the compilation of Kubernetes; for a debugger: GOFLAGS=-gcflags= make build
# Without the folder in them, compiled packages serve every checkout and the release (docs/dev/decisions/0041-one-cache.md).
export GOFLAGS := $(strip $(filter-out -tags=% -trimpath,$(GOFLAGS)) -trimpath -tags=grpcnotrace $(if $(filter -gcflags%,$(GOFLAGS)),,-gcflags=all=-dwarf=false))

# Before the first tag git describe gives a bare hash, which is no version.
VERSION ?= $(shell v=$$(git describe --tags --always --dirty 2>/dev/null) || v=dev; [[ $$v == v* ]] || v=v0.0.0-$$v; echo $$v)
# The kubelet reports its version to the cluster; without these it would be v0.0.0-master.
kubernetes = $(shell awk '$$1 == "k8s.io/kubernetes" { print $$2 }' $(1))
part = $(word $(2),$(subst ., ,$(patsubst v%,%,$(1))))
COMPONENT := k8s.io/component-base/version
says = -X $(COMPONENT).gitVersion=$(1) -X $(COMPONENT).gitMajor=$(call part,$(1),1) -X $(COMPONENT).gitMinor=$(call part,$(1),2)
export TEST_LDFLAGS := -w $(call says,$(call kubernetes,go.mod))
SKERRY_LDFLAGS = -s -w -X github.com/skerry-io/skerry/common/version.version=$(VERSION)
LDFLAGS = $(SKERRY_LDFLAGS) $(TEST_LDFLAGS)

BINARIES := edgecore skerry-launch cloudcore kubectl-skerry kubeplane trial
edgecore_pkg := ./edge/cmd/edgecore
skerry-launch_pkg := ./edge/cmd/skerry-launch
cloudcore_pkg := ./cloud/cmd/cloudcore
kubectl-skerry_pkg := ./cloud/cmd/kubectl-skerry
kubeplane_pkg := ./tests/cmd/kubeplane
trial_pkg := ./tests/cmd/trial
# Built only when something asks for it: upstream's kubelet, which edgecore is measured against, many nodes without one, edgecore without one,
# upstream's kube-proxy, and what stands in for a load balancer; and what runs the tests.
EXTRA_BINARIES := plainkubelet hollow hollowedge kubeproxy loadbalancer testrun
plainkubelet_pkg := ./tests/cmd/plainkubelet
hollow_pkg := ./tests/cmd/hollow
hollowedge_pkg := ./tests/cmd/hollowedge
kubeproxy_pkg := ./tests/cmd/kubeproxy
loadbalancer_pkg := ./tests/cmd/loadbalancer
testrun_pkg := ./build/testrun

# What the targets below may be given.
TRIAL_FLAGS ?=# for up: --edges 3, --link quic, ...
TESTFLAGS ?=#   for test, test-short and race: -run NAME, -count 1, ...
PACKAGES ?= ./...
SHARDS ?= 4
LANES ?=
export TESTFLAGS PACKAGES SHARDS LANES
FUZZTIME ?= 30s
BENCHTIME ?= 1s
ROWS ?= .*
ROUNDS ?= 5
MINUTES ?= 60
SEED ?= 0
FAULTS ?=#      for campaign: all where there are none
EDGES ?= 20
REAL ?=#        for campaign: 1 for a trial
CASES ?= \[sig-network\].*\[Conformance\]
WITHOUT ?= all

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: deps
deps: ## install what this machine lacks (containerd, runc, CNI plugins, ...); does nothing when all is there
	@build/deps.sh

.PHONY: up
up: deps build ## a whole trial cluster on this machine; TRIAL_FLAGS="--edges 3 --link quic"
	bin/trial up $(TRIAL_FLAGS)

.PHONY: down
down: ## end the trial cluster and leave nothing behind
	@if [ -x bin/trial ]; then bin/trial down; else echo "down: there is no bin/trial, so nothing can be up"; fi

.PHONY: build
build: $(addprefix build-,$(BINARIES)) ## bin/edgecore, bin/cloudcore, bin/kubeplane and bin/trial; cold 8 to 15 minutes, warm about 30 s

# One after another: a link takes up to 3 GB of memory.
.NOTPARALLEL:

.PHONY: $(addprefix build-,$(BINARIES) $(EXTRA_BINARIES))
$(addprefix build-,$(BINARIES) $(EXTRA_BINARIES)): build-%:
	@mkdir -p bin
	@build/compile.sh $* go build -v -buildvcs=false -ldflags "$(LDFLAGS)" -o bin/$* $($*_pkg)

# The same code with the Kubernetes before: its go.mod, and a file for each difference (build tag). All of Kubernetes is compiled once more.
BEFORE := 1.36
BEFORE_BINARIES := edgecore kubeplane
export OLDER_LDFLAGS := $(call says,$(call kubernetes,build/kubernetes/$(BEFORE)/go.mod))
.PHONY: $(addsuffix -$(BEFORE),$(addprefix build-,$(BEFORE_BINARIES)))
$(addsuffix -$(BEFORE),$(addprefix build-,$(BEFORE_BINARIES))): build-%-$(BEFORE):
	@mkdir -p bin
	@build/compile.sh $*-$(BEFORE) go build -v -buildvcs=false -modfile=build/kubernetes/$(BEFORE)/go.mod -tags kubernetes$(BEFORE),grpcnotrace \
		-ldflags "$(SKERRY_LDFLAGS) $(OLDER_LDFLAGS)" -o bin/$*-$(BEFORE) $($*_pkg)

# kube-vip as its module has it, for tests (docs/kube-vip.md); its dependencies never meet ours.
.PHONY: build-kube-vip
build-kube-vip:
	@mkdir -p bin
	@build/compile.sh kube-vip go build -v -buildvcs=false -modfile=build/tools/kubevip/go.mod -o bin/kube-vip github.com/kube-vip/kube-vip

# kube-state-metrics as its module has it, for tests (docs/monitoring.md): half a minute beyond the packages that the product compiles, too.
.PHONY: build-kube-state-metrics
build-kube-state-metrics:
	@mkdir -p bin
	@build/compile.sh kube-state-metrics go build -v -buildvcs=false -modfile=build/tools/kubestatemetrics/go.mod -ldflags "-s -w" -o bin/kube-state-metrics k8s.io/kube-state-metrics/v2

# CoreDNS as its module has it, for a benchmark.
.PHONY: build-coredns
build-coredns:
	@mkdir -p bin
	@build/compile.sh coredns go build -v -buildvcs=false -modfile=build/tools/coredns/go.mod -o bin/coredns github.com/coredns/coredns

# What a release is made for and of, and the registry that will have its image; SKERRY_SIGN_KEY=FILE signs it.
ARCHES ?= amd64 arm64
PROGRAMS ?= cloudcore edgecore kubectl-skerry
REGISTRY ?=
OLDER ?= $(BEFORE)
export ARCHES PROGRAMS REGISTRY OLDER

.PHONY: release
release: ## programs, packages, images, chart and bundles in build/out/release/VERSION; ARCHES=amd64 PROGRAMS=cloudcore for some, OLDER= without edgecore of Kubernetes 1.36
	@build/release.sh $(VERSION) build/out/release/$(VERSION)

.PHONY: release-test
release-test: ## what a release must show beyond make test, as root: two builds are equal, the chart, packages, a bundle
	@build/deps.sh release
	go test ./tests/release -count 1 -timeout 2h -ldflags "$(TEST_LDFLAGS)" $(TESTFLAGS)

.PHONY: test
test: deps build build-testrun ## all tests but the longest, as root: unit, cluster, integration, netns, campaign, e2e; LANES side by side (5 to 8)
	@build/deps.sh machine
	@SKERRY_BUILT="$(BINARIES)" bin/testrun all

.PHONY: long-test
long-test: deps build build-testrun ## the tests that make test leaves out, as root: VIP scenarios over IPVS, kept campaigns, kube-vip itself, scenarios in full
	@build/deps.sh machine
	@SKERRY_BUILT="$(BINARIES)" bin/testrun long

.PHONY: test-short
test-short: build-testrun ## vet and the unit tests; no root, no programs beside Go; PACKAGES=./beehive/... for some
	@bin/testrun short

.PHONY: env
env: ## eval "$$(make env)": the flags of this file for `go test` and `go build` in your shell; without them Kubernetes is compiled once more
	@printf 'export %s=%q\n' CGO_ENABLED "$$CGO_ENABLED" GOFLAGS "$$GOFLAGS" TEST_LDFLAGS "$$TEST_LDFLAGS" OLDER_LDFLAGS "$$OLDER_LDFLAGS"

.PHONY: race
race: ## the unit tests under the race detector, of the packages that don't bring Kubernetes' clients along; needs a C compiler
	@build/race.sh

.PHONY: lint
lint: ## golangci-lint as build/tools/lint/go.mod pins it; its first build takes some minutes
	go tool -modfile=build/tools/lint/go.mod golangci-lint run $(PACKAGES)

.PHONY: generate
generate: ## regenerate all generated code; needs protoc (apt-get install protobuf-compiler)
	@build/generate.sh

.PHONY: verify
verify: ## vet, generated code is up to date, gofmt, go.mod is tidy, the architecture's rules hold
	@build/verify.sh

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (30s) each
	@build/each.sh Fuzz go test -vet off -run '^$$' -fuzztime $(FUZZTIME) -fuzzminimizetime 32x -fuzz

.PHONY: campaign
campaign: ## a whole system under faults for MINUTES (60), judged by what its clients saw; SEED=7 repeats one, FAULTS=cut,lag for some, EDGES=20; REAL=1 against a trial of two edges with kubelet and containers, as root
	go test ./tests/campaign -run 'TestCampaign$$' -v -count 1 -timeout 24h -ldflags "$(TEST_LDFLAGS)" -minutes $(MINUTES) -seed $(SEED) -faults '$(FAULTS)' -edges $(EDGES) $(if $(REAL),-trial)

.PHONY: sensitivity
sensitivity: ## campaigns against a build in which the switches WITHOUT=fence,salvage (all) are off, one at a time, until one finds it (names in docs/dev/faults.md); -parallel by TESTFLAGS
	go test ./tests/campaign -run 'TestSensitivity$$' -v -count 1 -timeout 24h -ldflags "$(TEST_LDFLAGS)" -without $(WITHOUT) -seed $(SEED) $(TESTFLAGS)

.PHONY: conformance
conformance: build ## Kubernetes' own cases for Services, names and pod networks on a trial's edges, into docs/dev/conformance.md; compiles for minutes, as root; CASES=REGEXP for some
	@build/deps.sh conformance
	build/conformance.sh
	go test ./tests/conformance -run TestSite_33 -v -count 1 -timeout 1h -ldflags "$(TEST_LDFLAGS)" -conformance -cases '$(CASES)' -write $(CURDIR)/docs/dev/conformance.md

.PHONY: bench
bench: ## every figure beside its floor, into docs/dev/benchmarks.md; takes over an hour, as root; ROWS='Cut|Idle' for some, ROUNDS=5
	go test ./tests/bench -run '^$$' -bench 'Row/^($(ROWS))$$' -benchtime 1x -timeout 4h -ldflags "$(TEST_LDFLAGS)" -rounds $(ROUNDS) -write $(CURDIR)/docs/dev/benchmarks.md

.PHONY: bench-code
bench-code: ## every benchmark beside the code, BENCHTIME (1s) each
	@build/each.sh Benchmark go test -vet off -run '^$$' -benchmem -benchtime $(BENCHTIME) -bench

.PHONY: clean
clean: ## remove what was built; the trial must be down
	@if [ -e .trial ]; then echo "clean: there is a trial in .trial: make down first" >&2; exit 1; fi
	rm -rf bin build/out
