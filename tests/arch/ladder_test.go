package arch_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// ladder is every room of the product, lowest step first. A package imports only from steps below
// its own, and from its own room: the packages below one of these directories, where they have no
// line of their own, share its room. Files of tests are free.
var ladder = [][]string{
	// L0: values
	{"common/api", "common/version", "common/protocol", "manifests"},
	// L1: messages (standard library only)
	{"beehive/message"},
	// L2: the bus between modules of a process
	{"beehive"},
	// L3: packages that both sides share
	{"common/applog", "common/claim", "common/topic", "common/pki", "common/config", "common/httpserver", "common/logging", "common/recovery", "common/rerun", "common/notifytest", "common/login1test", "common/dependency", "common/selectable", "common/i18n", "common/podstream", "common/terminal"},
	{"common/link", "common/nodemetrics"},
	{"common/cli", "common/gctuner", "common/programpages", "common/health", "common/tunnel"},
	{"common/watchdog"},
	// L4: the two sides, one under the other only as far as they need it
	{
		"cloud/internal/core/config", "cloud/internal/core/kube", "cloud/internal/core/otlp", "cloud/internal/core/quota",
		"common/atomicfile",
		"edge/internal/core/connshare", "edge/internal/core/launch", "edge/internal/core/linkstate", "edge/internal/core/object", "edge/internal/core/table",
		"edge/internal/setup/config",
	},
	{
		"edge/internal/kernel",
		"cloud/internal/access/clienthello",
		"cloud/internal/core/balance", "cloud/internal/core/cloudhub", "cloud/internal/core/fence", "cloud/internal/core/history",
		"cloud/install",
		"edge/internal/core/artefact", "edge/internal/core/store",
		"edge/internal/pods/peer",
	},
	{"cloud/internal/core/fleet", "cloud/internal/controllers/controller"},
	{
		"cloud/internal/controllers/reports",
		"cloud/internal/access/aggregated", "cloud/internal/access/artefacts", "cloud/internal/access/rescue", "cloud/internal/access/tunnel",
		"cloud/internal/core/publish", "cloud/internal/core/relay",
		"cloud/internal/trust/join",
		"edge/internal/core/agent", "edge/internal/core/metamanager",
		"edge/internal/optional/content",
		"edge/internal/pods/cri",
		"edge/internal/site/peers",
	},
	{
		"cloud/internal/access/applogs", "cloud/internal/access/console", "cloud/internal/access/nodemetrics",
		"cloud/internal/controllers/app", "cloud/internal/controllers/clusterinfo", "cloud/internal/controllers/drain", "cloud/internal/controllers/marks", "cloud/internal/controllers/drain/operationset", "cloud/internal/controllers/rollout", "cloud/internal/controllers/route", "cloud/internal/controllers/site", "cloud/internal/controllers/vip",
		"cloud/internal/trust/check",
		"edge/internal/core/edgeapi",
		"edge/internal/agents/probation",
		"edge/internal/pods/pluginwatch",
	},
	{
		"edge/internal/agents/apiredirect", "edge/internal/agents/drain", "edge/internal/agents/flightrecorder", "edge/internal/agents/history", "edge/internal/agents/node", "edge/internal/agents/route", "edge/internal/agents/vip",
		"edge/internal/core/edgehub",
		"edge/internal/optional/app", "edge/internal/optional/applogs", "edge/internal/optional/console", "edge/internal/optional/marks", "edge/internal/optional/nodemetrics", "edge/internal/optional/passthrough", "edge/internal/optional/statsleader", "edge/internal/optional/statusserver",
		"edge/internal/pods/creationorder", "edge/internal/pods/deviceplugin", "edge/internal/pods/edged", "edge/internal/pods/images", "edge/internal/pods/podhealth", "edge/internal/pods/rehearsal", "edge/internal/pods/shutdown", "edge/internal/pods/singleton", "edge/internal/pods/unsynced",
		"edge/internal/setup/backup", "edge/internal/setup/bundle", "edge/internal/setup/check", "edge/internal/setup/join", "edge/internal/setup/sdnotify", "edge/internal/setup/tunnel",
		"edge/internal/site/endpoints", "edge/internal/site/names", "edge/internal/site/protect", "edge/internal/site/services", "edge/internal/site/serviceview", "edge/internal/site/sharing",
	},
	{"edge/internal/agents/upgrade", "edge/internal/site/contact"},
	{"edge/internal/site/podnet"},
	// L5: the wiring
	{"cloud/app", "edge/app", "edge/artefactrepo", "edge/hollow"},
	// L6: the commands
	{"cloud/cmd", "edge/cmd"},
}

// exclusive lists imports and the only packages that may have them, apart from tests and the tools
// that build.
var exclusive = []struct {
	imports []string // a path, and all below it
	only    []string // directories, and all below them
	reason  string
}{
	{
		[]string{"go.etcd.io/bbolt"},
		[]string{"edge/internal/core/store"},
		"one writer, one place that knows the file",
	},
	{
		[]string{"github.com/vishvananda/netlink", "github.com/vishvananda/netns", "github.com/coreos/go-iptables", "golang.zx2c4.com/wireguard"},
		[]string{"edge/internal/kernel", "common/login1test"},
		"agents compute the wanted state, drivers make it so",
	},
	{
		[]string{"os/exec"},
		[]string{"edge/internal/kernel", "edge/internal/pods/images/containerd", "common/login1test"},
		"agents compute the wanted state, drivers make it so; and containerd 2 tells its configuration by its program alone",
	},
	{
		[]string{"github.com/gorilla/websocket"},
		[]string{"common/link/wslink", "cloud/internal/access/console"},
		"a transport is behind the contract of common/link; KubeVirt's consoles are websockets of their own",
	},
	{
		[]string{"github.com/quic-go/quic-go"},
		[]string{"common/link/quiclink", "edge/internal/site/contact"},
		"a transport is behind the contract of common/link; devices of a site speak past it, as equals and without a cloud",
	},
	{
		[]string{"k8s.io/kubernetes/cmd/kubelet"},
		[]string{"edge/internal/pods/edged"},
		"the kubelet is linked in one place",
	},
	{
		[]string{"k8s.io/kubernetes/pkg/printers", "k8s.io/kubernetes/pkg/api/legacyscheme"},
		nil,
		"they bring every API group's internal version: a fifth of edgecore's memory (docs/dev/decisions/0009-tables.md)",
	},
	{
		[]string{"k8s.io/kubectl", "k8s.io/cli-runtime"},
		[]string{"cloud/cmd/kubectl-skerry", "common/i18n"},
		"they bring kustomize too: 126 packages and 2.3 MB of every device's memory, for an evict and a wait",
	},
	{
		[]string{"sigs.k8s.io/kustomize"},
		nil,
		"it brings a copy of Kubernetes' OpenAPI along: 2.6 MB of cloudcore, for what cloud/install does with a handful of files",
	},
	{
		[]string{
			"go.etcd.io/etcd/server", "k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager",
			"k8s.io/kubernetes/cmd/kube-scheduler",
		},
		nil,
		"a control plane is for trials and tests: cloudcore never links one",
	},
}

// step finds the room of a directory: the longest line of the ladder that it is within.
func step(dir string) (level int, room string) {
	level = -1
	for i, rooms := range ladder {
		for _, r := range rooms {
			if within(dir, r) && len(r) > len(room) {
				level, room = i, r
			}
		}
	}
	return level, room
}

func TestLadder(t *testing.T) {
	for _, p := range source(t).packs {
		for _, bad := range climbs(p) {
			t.Error(bad)
		}
	}
}

// climbs returns where a package breaks the ladder.
func climbs(p *sourcePack) (bad []string) {
	if !p.product() || p.dir == "." {
		return nil
	}
	level, room := step(p.dir)
	if level < 0 {
		return []string{p.dir + " has no step: add it to the ladder in tests/arch"}
	}
	for _, f := range p.files {
		for _, i := range f.imports {
			dir, ours := strings.CutPrefix(i, module+"/")
			if f.test || !ours {
				continue
			}
			switch below, other := step(dir); {
			case !product(dir):
				bad = append(bad, fmt.Sprintf("%s imports %s: the product does not need its tests and tools", f.path, dir))
			case below < level || other == room:
			case below == level:
				bad = append(bad, fmt.Sprintf("%s imports %s, of its own step: declare the interface it needs, or move one of them", f.path, dir))
			default:
				bad = append(bad, fmt.Sprintf("%s imports %s, of a step above", f.path, dir))
			}
		}
	}
	return bad
}

func product(dir string) bool { return (&sourcePack{dir: dir}).product() }

func TestLadder_hasNoRoomTwice(t *testing.T) {
	var all []string
	for _, rooms := range ladder {
		all = append(all, rooms...)
	}
	slices.Sort(all)
	if once := slices.Compact(slices.Clone(all)); len(once) != len(all) {
		t.Errorf("a room stands twice in the ladder: %v", all)
	}
}

func TestExclusiveImports(t *testing.T) {
	for _, p := range source(t).packs {
		for _, bad := range trespasses(p) {
			t.Error(bad)
		}
	}
}

// trespasses returns a package's imports that are for others alone.
func trespasses(p *sourcePack) (bad []string) {
	if !p.product() {
		return nil
	}
	for _, f := range p.files {
		for _, rule := range exclusive {
			if f.test || slices.ContainsFunc(rule.only, func(dir string) bool { return within(p.dir, dir) }) {
				continue
			}
			for _, i := range f.imports {
				if slices.ContainsFunc(rule.imports, func(r string) bool { return within(i, r) }) {
					bad = append(bad, fmt.Sprintf("%s imports %s, which is for %s alone: %s", f.path, i, strings.Join(rule.only, ", "), rule.reason))
				}
			}
		}
	}
	return bad
}

func TestMessageImportsTheStandardLibraryOnly(t *testing.T) {
	for _, p := range source(t).packs {
		if p.dir != "beehive/message" {
			continue
		}
		for _, f := range p.files {
			for _, i := range f.imports {
				if first, _, _ := strings.Cut(i, "/"); !f.test && strings.Contains(first, ".") {
					t.Errorf("%s imports %s", f.path, i)
				}
			}
		}
	}
}
