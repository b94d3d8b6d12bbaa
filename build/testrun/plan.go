package main

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A phase is one call of go test.
type phase struct {
	name     string
	packages []string
	// parallel is how many test binaries are linked and run at the same time, at up to 3 GB each
	// where Kubernetes is linked.
	parallel int
	shard    string // which part of a suite's tests, like 1/2; "" for all
	timeout  string // of one test binary; "" is the usual
	runtime  string // another containerd, for runtimeTests; "" is the machine's, for all tests
}

const (
	// usualTimeout is for one test binary; the longest takes some 30 minutes.
	usualTimeout = "75m"
	// unitTimeout is for one without a trial, which takes up to 8 minutes: a hang leaves time for
	// a second try.
	unitTimeout = "20m"
)

func (p phase) binaryTimeout() string { return cmp.Or(p.timeout, usualTimeout) }

// wholeShard is all of a suite's tests, for a package that can run in parts.
const wholeShard = "1/1"

// A job is phases in a row. Jobs run side by side: each has networks, control planes or a kernel of
// its own. Packages that would meet, as those do whose programs listen on the same ports, are in
// one job.
type job struct {
	name   string
	phases []phase
}

const (
	longVariable   = "SKERRY_LONG"   // that a test plays its scenario in full
	minuteVariable = "SKERRY_MINUTE" // how long a minute of a scenario takes
	// runtimeVariable is the version of the containerd of all nodes, which is compiled for it.
	runtimeVariable = "SKERRY_CONTAINERD"
	// nextRuntime is that of tests/cluster/binary.
	nextRuntime = "next"
)

// runtimeTests are those in which the container runtime matters, for a further version of it.
const runtimeTests = `^TestEveryday_(01|03|04|06|07|08|09|11|12|14|18|22|25)_.*$`

// longer is left out by all and run by long: each takes a whole machine for minutes. all runs
// another part of each but kube-vip, which must be compiled: that has the tests of
// cloud/install/kubevip. Of the real machine all plays three scenarios, and long all.
const longer = `^TestTraps_09_VIPsWithIPVS$/^the_others$|^TestOrder_14_ShortCampaigns$/^seed_(2|14)$|^TestServices_14_KubeVIP$|^TestEveryday_21_NoPodIsMissingAfterPressureAndShutdowns$/^long$|^TestHostile_05_QuotasAnswer429WithRetryAfter$/^events_for_a_minute$|^Test(Everyday_(02_19|03|04)|Operate_11)_RealMachine.*$`

// again is run by all in a short form and by long in full: reboots one after the other, real
// minutes, a newer containerd, 50 healthy pods, and 100,000 changes; and each boot of a real
// machine. Those tests ask for longVariable and minuteVariable.
const again = `^TestEveryday_(06|07|08|11|14|20)_.*$|^TestOrder_13_ManyChangesOfflineTakeNoMoreMemory$|^TestOperate_10_RehearsalPredictsAnOfflineReboot$|^Test(Everyday|Fleet)_.*_RealMachine.*$`

var (
	// needsRoot matches packages of tests/ that make namespaces, control planes or kernels.
	needsRoot = regexp.MustCompile(`^tests/((cluster|integration|hostile|netns|uml|vm|machine|e2e|site|apps|services|incluster|bench|release)(/|$)|campaign$)`)
	// realParts matches packages of the product whose tests have a control plane, keepalived or the
	// kernel. Those of one side run one at a time, to not take the time from each other.
	realParts = regexp.MustCompile(`^(edge/internal/(agents/(vip|route|drain)|kernel/.*)|cloud/internal/(core/(publish|relay)|trust/join|controllers/(route|vip|reports)))$`)
)

// plan divides packages, paths within the module, into jobs. Jobs and phases without packages are
// left out.
func plan(what string, packages []string, shards int, lengths lengths) []job {
	matching := func(ok func(string) bool) []string {
		return slices.DeleteFunc(slices.Clone(packages), func(p string) bool { return !ok(p) })
	}
	below := func(dir string) []string {
		return matching(func(p string) bool { return p == "tests/"+dir || strings.HasPrefix(p, "tests/"+dir+"/") })
	}
	each := func(name string, dirs ...string) job {
		j := job{name: name}
		for _, dir := range dirs {
			j.phases = append(j.phases, phase{name: dir, packages: below(dir), parallel: 1})
		}
		return j
	}
	realOf := func(side string) job {
		return job{"real " + side, []phase{{name: "real " + side, parallel: 1, timeout: unitTimeout, packages: matching(func(p string) bool {
			return realParts.MatchString(p) && strings.HasPrefix(p, side+"/")
		})}}}
	}
	unit := job{"unit", []phase{{name: "unit", parallel: 2, timeout: unitTimeout, packages: matching(func(p string) bool {
		return !needsRoot.MatchString(p) && !realParts.MatchString(p)
	})}}}
	campaign := job{"campaign", []phase{{name: "campaign", parallel: 1, packages: matching(func(p string) bool { return p == "tests/campaign" })}}}

	var jobs []job
	switch what {
	case "short":
		jobs = []job{unit}
	case "long":
		e2e := each("e2e", "e2e")
		e2e.phases = append(e2e.phases, phase{name: "e2e, next containerd", packages: below("e2e"), parallel: 1, runtime: nextRuntime})
		jobs = []job{e2e, each("uml", "uml"), each("services", "services"), each("machine", "machine"), campaign, each("hostile", "hostile"),
			{"order", []phase{{name: "order", parallel: 1, packages: matching(func(p string) bool { return p == "edge/internal/core/metamanager" })}}}}
	default:
		for n := 1; n <= shards; n++ {
			part := strconv.Itoa(n) + "/" + strconv.Itoa(shards)
			name := "e2e " + part
			jobs = append(jobs, job{name, []phase{{name: name, packages: below("e2e"), parallel: 1, shard: part}}})
		}
		jobs = append(jobs, each("site", "site"), each("apps", "apps"), each("incluster", "incluster"), each("services", "services"), each("hostile", "hostile"),
			each("integration", "integration"), each("cluster", "cluster"), campaign, realOf("cloud"), realOf("edge"), each("machine", "machine"), each("kernels", "uml", "vm", "netns"), unit)
	}
	// The longest first, so that the lanes end together.
	slices.SortStableFunc(jobs, func(a, b job) int { return cmp.Compare(lengths.of(b, shards), lengths.of(a, shards)) })
	for i := range jobs {
		jobs[i].phases = slices.DeleteFunc(jobs[i].phases, func(p phase) bool { return len(p.packages) == 0 })
	}
	return slices.DeleteFunc(jobs, func(j job) bool { return len(j.phases) == 0 })
}

// of is the expected length of a job. An unknown one begins first: it may be long.
func (l lengths) of(j job, shards int) int {
	if p := j.phases; len(p) > 0 && p[0].shard != "" && len(p[0].packages) == 1 {
		sum := 0
		for seconds := range maps.Values(l.Tests[p[0].packages[0]]) {
			sum += seconds
		}
		return sum / shards
	}
	if seconds, ok := l.Jobs[j.name]; ok {
		return seconds
	}
	return 1 << 20
}

// selection are the flags that select the tests of a phase.
func selection(what string, p phase) []string {
	switch {
	case p.runtime != "":
		return []string{"-run", runtimeTests}
	case what == "all":
		return []string{"-skip", longer}
	case what == "long":
		return []string{"-run", longer + "|" + again}
	}
	return nil
}

// environment is the environment of a phase's tests.
func environment(what string, p phase) []string {
	env := []string{"SKERRY_E2E_SHARD=" + p.shard}
	if p.runtime != "" {
		return append(env, runtimeVariable+"="+p.runtime)
	}
	if what == "long" {
		env = append(env, longVariable+"=1", minuteVariable+"=1m")
	}
	return env
}
