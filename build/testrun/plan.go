package main

import (
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
}

// timeout is for one test binary; the longest takes some 20 minutes.
const timeout = "75m"

func logName(name string) string { return strings.NewReplacer(" ", "-", "/", "-").Replace(name) }

// wholeShard is all of a suite's tests, for a package that can run in parts.
const wholeShard = "1/1"

// A job is phases in a row. Jobs run side by side: each has networks, control planes or a kernel of
// its own. Phases that would meet, as control planes on the same ports do, are in one job.
type job struct {
	name   string
	phases []phase
}

// longer is left out by all and run by long: each takes a whole machine for minutes. all runs
// another part of the first two; it leaves out kube-vip, which must be compiled, but for the tests
// of cloud/internal/controllers/kubevip.
const longer = `^TestTraps_09_VIPsWithIPVS$/^the_others$|^TestOrder_14_ShortCampaigns$/^seed_(2|14)$|^TestServices_14_KubeVIP$`

var (
	// needsRoot matches packages of tests/ that make namespaces, control planes or kernels.
	needsRoot = regexp.MustCompile(`^tests/((cluster|integration|hostile|netns|uml|vm|e2e|site|apps|services|incluster|bench|release)(/|$)|campaign$)`)
	// realParts matches packages of the product whose tests have a control plane, keepalived or the
	// kernel. Those of one side run one at a time, to not take the time from each other.
	realParts = regexp.MustCompile(`^(edge/internal/(vip|route|drain|kernel/.*)|cloud/internal/(publish|relay|join|route|vip|aggregate))$`)
)

// plan divides packages, paths within the module, into jobs. Jobs and phases without packages are
// left out.
func plan(what string, packages []string, shards int) []job {
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
		return job{"real " + side, []phase{{name: "real " + side, parallel: 1, packages: matching(func(p string) bool {
			return realParts.MatchString(p) && strings.HasPrefix(p, side+"/")
		})}}}
	}
	unit := job{"unit", []phase{{name: "unit", parallel: 2, packages: matching(func(p string) bool {
		return !needsRoot.MatchString(p) && !realParts.MatchString(p)
	})}}}
	campaign := phase{name: "campaign", parallel: 1, packages: matching(func(p string) bool { return p == "tests/campaign" })}

	var jobs []job
	switch what {
	case "short":
		jobs = []job{unit}
	case "long":
		jobs = []job{each("uml", "uml"), each("services", "services"), {"campaign", []phase{campaign}}}
	default:
		// The longest first, so that the lanes end together.
		for n := 1; n <= shards; n++ {
			part := strconv.Itoa(n) + "/" + strconv.Itoa(shards)
			name := "e2e " + part
			jobs = append(jobs, job{name, []phase{{name: name, packages: below("e2e"), parallel: 1, shard: part}}})
		}
		planes := each("planes", "cluster", "integration", "hostile")
		planes.phases = append(planes.phases, campaign)
		jobs = append(jobs, each("site", "site"), planes, realOf("cloud"), realOf("edge"), unit, each("apps", "apps"), each("kernels", "uml", "vm", "netns"),
			each("incluster", "incluster"), each("services", "services"))
	}
	for i := range jobs {
		jobs[i].phases = slices.DeleteFunc(jobs[i].phases, func(p phase) bool { return len(p.packages) == 0 })
	}
	return slices.DeleteFunc(jobs, func(j job) bool { return len(j.phases) == 0 })
}

// selection is what of the tests go test is told to run.
func selection(what string) []string {
	switch what {
	case "all":
		return []string{"-skip", longer}
	case "long":
		return []string{"-run", longer}
	}
	return nil
}
