package conformance

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/skerry-io/skerry/common/version"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/cluster/binary"
	"github.com/skerry-io/skerry/tests/cluster/lab"
	"github.com/skerry-io/skerry/tests/cluster/trial"
)

var (
	run   = flag.Bool("conformance", false, "run Kubernetes' cases: make conformance builds what they need")
	cases = flag.String("cases", `\[sig-network\].*\[Conformance\]`, "which cases, a regular expression")
	to    = flag.String("write", "", "the page to write")
)

//go:embed known.txt
var knownText string

func TestMain(m *testing.M) {
	flag.Parse()
	if !*run { // the part that needs a build of all of Kubernetes' tests is not in `make test`; the rest is
		if err := flag.Set("test.skip", "^TestSite_33"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

const (
	procs   = 6 // cases side by side; they mostly wait
	limit   = 40 * time.Minute
	upLimit = 5 * time.Minute
)

// Kubernetes' own cases for Services, DNS, EndpointSlices and networking pass on edges, with a way
// from kube-apiserver to their pods.
func TestSite_33_ConformanceOfSigNetwork(t *testing.T) {
	if lacks := missing(); len(lacks) > 0 {
		t.Fatalf("this machine lacks %s: apt-get install bind9-dnsutils socat netcat-openbsd busybox-static curl", strings.Join(lacks, ", "))
	}
	root, err := binary.Root()
	check(t, err)
	work := t.TempDir()
	archive := filepath.Join(work, "agnhost.tar")
	names, err := images(t.Context(), filepath.Join(root, "bin", "e2e.test"))
	check(t, err)
	check(t, pack(t.Context(), archive, filepath.Join(root, "bin", "agnhost"), filepath.Join(root, "build", "out", "conformance"), names))
	all := bringUp(t, root, archive)

	ctx, cancel := context.WithTimeout(t.Context(), limit+time.Minute)
	defer cancel()
	report := filepath.Join(work, "report.json")
	cmd := exec.CommandContext(ctx, filepath.Join(root, "bin", "ginkgo"), fmt.Sprintf("-procs=%d", procs), "--no-color", "--silence-skips", "--json-report=report.json", "--output-dir="+work,
		"--timeout="+limit.String(), "--focus="+*cases, filepath.Join(root, "bin", "e2e.test"), "--",
		"--kubeconfig="+all.Kubeconfig(), "--kubectl-path="+filepath.Join(root, "bin", "kubectl"), "--provider=skeleton", "--num-nodes=2", "--allowed-not-ready-nodes=0",
		"--minStartupPods=0", "--report-dir="+work, "--dump-logs-on-failure=false", "--disable-log-dump=true")
	cmd.Dir, cmd.Env = work, append(os.Environ(), "TMPDIR="+work)
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) { // a case that fails is in the report
		t.Fatal(err)
	}
	found, err := read(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	judge(t, found)
	if *to != "" && len(found) > 0 {
		var page bytes.Buffer
		check(t, write(&page, version.Kubernetes(), *cases, found, known(knownText)))
		check(t, os.WriteFile(*to, page.Bytes(), 0o644))
	}
}

// judge fails for each case that failed and is not known to, and for each that is known to
// and passed.
func judge(t *testing.T, found []result) {
	t.Helper()
	reasons, passed := known(knownText), 0
	for _, r := range found {
		switch why := reasons[r.Name]; {
		case r.State == "passed" && why != "":
			t.Errorf("%s passes: known.txt says that it can't, %s", r.Name, why)
		case r.State == "passed":
			passed++
		case why == "":
			t.Errorf("%s: %s after %v: %s", r.Name, r.State, r.Took, r.Message)
		}
	}
	t.Logf("%d of %d cases pass", passed, len(found))
	if passed == 0 {
		t.Error("no case has passed")
	}
}

// bringUp brings two edges up, with the image.
func bringUp(t *testing.T, root, archive string) *trial.Trial {
	t.Helper()
	all, err := trial.Open(root, filepath.Join(root, ".trial-conformance"), os.Stderr)
	if all == nil {
		t.Fatal(err)
	}
	check(t, all.Down(t.Context())) // leftovers of a killed run
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := all.Down(ctx); err != nil {
			t.Error(err)
		}
	})
	o := trial.DefaultOptions()
	o.Sample = false
	// Cases read events of pods; the kubelet asks no registry whether it may use imported images.
	o.Set = []string{"modules.edged.reportEvent=true", "modules.edged.kubelet.imagePullCredentialsVerificationPolicy=NeverVerify"}
	ctx, cancel := context.WithTimeout(t.Context(), upLimit)
	defer cancel()
	check(t, all.Up(ctx, o))
	for _, n := range o.Nodes() {
		var out strings.Builder
		code, err := all.Exec(ctx, n.Name, trial.Streams{Out: &out, Err: &out}, nil, "ctr", "--namespace=k8s.io", "images", "import", archive)
		check(t, err)
		if code != 0 {
			t.Fatalf("importing the image on %s: %s", n.Name, out.String())
		}
	}
	reachPods(t, all, o.Nodes())
	return all
}

// reachPods gives the trial the connectivity that the cases expect of a cluster, and devices behind
// NAT lack. kube-apiserver's host gets a cable to the devices' LAN and routes to their pods, as by
// a VPN: by it the cases read their pods' results (pods/proxy). And nodes reach each other at the
// address that their Node names, that of the uplink here: cases ask for NodePorts there.
func reachPods(t *testing.T, all *trial.Trial, nodes []trial.Node) {
	t.Helper()
	router, err := all.Host("router")
	check(t, err)
	cloud, err := all.Host(trial.Cloud)
	check(t, err)
	check(t, lab.Visit(router, cloud))
	config, err := all.Admin()
	check(t, err)
	client, err := kubernetes.NewForConfig(config)
	check(t, err)
	route := func(ctx context.Context, on, to string, by trial.Node) error {
		var out strings.Builder
		code, err := all.Exec(ctx, on, trial.Streams{Out: &out, Err: &out}, nil, "ip", "route", "replace", to, "via", lab.LAN(by.Number).Addr().String())
		if err != nil || code != 0 {
			return fmt.Errorf("the route of %s to %s: %w %s", on, to, err, out.String())
		}
		return nil
	}
	cluster.Eventually(t, "routes between the devices, and from the cloud to their pods", func(ctx context.Context) error {
		for _, n := range nodes {
			node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if node.Spec.PodCIDR == "" {
				return fmt.Errorf("%s has no range", n.Name)
			}
			if err := route(ctx, trial.Cloud, node.Spec.PodCIDR, n); err != nil {
				return err
			}
			for _, other := range nodes {
				if other == n {
					continue
				}
				if err := route(ctx, other.Name, lab.Uplink(n.Number).Addr().String(), n); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The page contains a report's results, and why known failures fail.
func TestReport(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	check(t, os.WriteFile(path, []byte(`[{"SpecReports":[
		{"ContainerHierarchyTexts":["[sig-network] DNS"],"LeafNodeType":"It","LeafNodeText":"should work","State":"passed","RunTime":1},
		{"ContainerHierarchyTexts":["[sig-network] Proxy"],"LeafNodeType":"It","LeafNodeText":"should proxy","State":"failed","Failure":{"Message":"no way"}},
		{"ContainerHierarchyTexts":["[sig-apps] Job"],"LeafNodeType":"It","LeafNodeText":"was not chosen","State":"skipped"},
		{"LeafNodeType":"ReportAfterSuite","State":"passed"}]}]`), 0o644))
	all, err := read(path)
	check(t, err)
	var page bytes.Buffer
	check(t, write(&page, "v1.37.1", "sig-network", all, known("# comment\n[sig-network] Proxy should proxy ## it can't\n")))
	for _, want := range []string{"1 of 2 cases pass.", "| [sig-network] DNS should work | passed |", "| [sig-network] Proxy should proxy | failed: it can't |"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, page.String())
		}
	}
}
