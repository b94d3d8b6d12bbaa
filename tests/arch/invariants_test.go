package arch_test

import (
	"encoding/json"
	"go/ast"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A mutation breaks an invariant of docs/dev/ARCHITECTURE.md by one replacement in one file; the
// quick tests of a package notice it.
type mutation struct {
	invariant string
	breaks    string
	file      string
	old, new  string
	noticed   string // the package
}

// mutations has one at least for each invariant. Invariant 7 is broken by a call that does not
// exist yet: TestClaims_23_ObjectsThatTheCloudMakes notices it, and TestMadeObjects lists the calls
// that it must find.
var mutations = []mutation{
	{
		"1", "a certificate of any group is a node's", "common/pki/pki.go",
		"if len(subject.Names) != 2 || !slices.Equal(subject.Organization, []string{NodesGroup}) {", "if slices.Equal(subject.Organization, nil) {", "common/pki",
	},
	{
		"1", "a session is of another node than its certificate", "cloud/internal/core/cloudhub/handshake.go",
		"\tnode, err := pki.NodeOf(cert)\n", "\tnode, err := pki.NodeOf(cert)\n\tnode = \"edge-of-a-message\"\n", "cloud/internal/core/cloudhub",
	},
	{
		"2", "a State is acknowledged before it is stored", "edge/internal/core/metamanager/deliver.go",
		"\terr := m.do(ctx, func(b *batch) error {\n\t\tin.mu.Lock()\n", "\tfor _, s := range d.states {\n\t\tack := s.message.Answer(&topicpb.StateAck{Sequence: s.state.Sequence})\n\t\tack.Header.ParentID = 0\n\t\tm.sender.PutAck(ack)\n\t}\n" +
			"\terr := m.do(ctx, func(b *batch) error {\n\t\tin.mu.Lock()\n", "edge/internal/core/metamanager",
	},
	{
		"3", "a set that has not arrived is answered", "edge/internal/core/metamanager/view/cover.go",
		"\t\tcase v.valid(i), i.refused == nil && v.holdsNamed(s):\n", "\t\tcase v.valid(i), i.refused == nil:\n", "edge/internal/core/metamanager",
	},
	{
		"4", "events wait without a bound", "edge/internal/core/metamanager/outbox/batch.go",
		"\tfor _, id := range b.o.eventOrder {\n\t\tif b.events.entries <=", "\tfor _, id := range b.o.eventOrder {\n\t\tif true || b.events.entries <=", "edge/internal/core/metamanager/outbox",
	},
	{
		"4", "sessions without a bound", "cloud/internal/core/cloudhub/table.go",
		"\t\tif len(t.slots) >= t.max {\n", "\t\tif false && len(t.slots) >= t.max {\n", "cloud/internal/core/cloudhub",
	},
	{
		"5", "the fence compares nothing", "cloud/internal/core/fence/fence.go",
		"\tcase err != nil || epoch < ours:\n", "\tcase true:\n\t\treturn nil\n\tcase err != nil || epoch < ours:\n", "cloud/internal/core/fence",
	},
	{
		"6", "the kubelet's Lease goes to the disk", "edge/internal/core/metamanager/write.go",
		"\t\tcase m.lease.Is(w.Ref) && w.Verb != \"deletecollection\":\n", "\t\tcase m.lease.Is(w.Ref) && w.Verb != \"deletecollection\":\n\t\t\t_ = m.config.Store.SetLastTime(ctx, time.Now())\n", "edge/internal/core/metamanager",
	},
}

// invariants finds the numbers of the list.
var invariants = regexp.MustCompile(`(?m)^(\d+)\. `)

// TestClaims_23_EachInvariantHasAMutation: each applies to the source as it is, whose package has
// quick tests. With SKERRY_LONG=1 each is made, and the tests of the package, with -short, fail.
func TestClaims_23_EachInvariantHasAMutation(t *testing.T) {
	tree := source(t)
	page, err := os.ReadFile(filepath.Join(tree.root, "docs/dev/ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(string(page), "## Invariants\n")
	list, _, _ = strings.Cut(list, "\n## ")
	have := map[string]bool{"7": true}
	for _, m := range mutations {
		have[m.invariant] = true
	}
	for _, n := range invariants.FindAllStringSubmatch(list, -1) {
		if !have[n[1]] {
			t.Errorf("invariant %s has no mutation", n[1])
		}
	}
	for _, m := range mutations {
		t.Run(m.invariant+" "+m.breaks, func(t *testing.T) {
			file := filepath.Join(tree.root, m.file)
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), m.old); n != 1 {
				t.Fatalf("%s has what is replaced %d times", m.file, n)
			}
			if os.Getenv("SKERRY_LONG") == "" {
				return
			}
			dir := t.TempDir()
			broken, overlay := filepath.Join(dir, "broken.go"), filepath.Join(dir, "overlay.json")
			replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{file: broken}})
			if err != nil {
				t.Fatal(err)
			}
			for name, content := range map[string][]byte{broken: []byte(strings.Replace(string(text), m.old, m.new, 1)), overlay: replaced} {
				if err := os.WriteFile(name, content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "go", "test", "-short", "-vet=off", "-overlay", overlay, "./"+m.noticed)
			cmd.Dir = tree.root
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL: ") {
				t.Errorf("the quick tests of %s don't notice it: %v\n%s", m.noticed, err, out)
			}
		})
	}
}

// madeObjects are the objects that the cloud makes in kube-apiserver, by the file that makes them
// (invariant 7). An object here is no bookkeeping, or one of those that the invariant names.
var madeObjects = map[string][]string{
	"cloud/internal/controllers/app/controller.go":           {"volumes of applications", "ReplicaSets of applications"},
	"cloud/internal/controllers/drain/operationset/apply.go": {"NodeOperations of sets"},
	"cloud/internal/controllers/vip/controller.go":           {"VirtualIPs"},
	"cloud/internal/core/balance/balance.go":                 {"the Lease of the replicas"},
	"cloud/internal/core/history/history.go":                 {"the same Lease"},
	"cloud/internal/trust/join/ca.go":                        {"the CA"},
	"cloud/internal/trust/join/revoke.go":                    {"the list of revoked nodes"},
	"cloud/internal/trust/join/server.go":                    {"a certificate request of who joins"},
	"cloud/internal/trust/join/tokens.go":                    {"a token", "its Secret"},
}

// makes counts the calls that make an object; reviews are answers, and are not stored.
func makes(f *sourceFile) (n int) {
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Create", "Apply"}, method.Sel.Name) {
			return true
		}
		// The frame of controllers has a Kind for each resource, whose Create has no options.
		if of, ok := method.X.(*ast.SelectorExpr); ok && len(call.Args) == 2 && strings.HasSuffix(of.Sel.Name, "Kind") {
			n++
			return true
		}
		if len(call.Args) < 3 {
			return true
		}
		options, ok := call.Args[len(call.Args)-1].(*ast.CompositeLit)
		if !ok {
			return true
		}
		if of, ok := options.Type.(*ast.SelectorExpr); !ok || of.Sel.Name != method.Sel.Name+"Options" {
			return true
		}
		if of, ok := method.X.(*ast.CallExpr); ok {
			if resource, ok := of.Fun.(*ast.SelectorExpr); ok && strings.HasSuffix(resource.Sel.Name, "Reviews") {
				return true
			}
		}
		n++
		return true
	})
	return n
}

func TestClaims_23_ObjectsThatTheCloudMakes(t *testing.T) {
	have, want := map[string]int{}, map[string]int{}
	for _, p := range source(t).packs {
		if !strings.HasPrefix(p.dir, "cloud/internal/") && p.dir != "cloud/app" {
			continue
		}
		for _, f := range p.files {
			if n := makes(f); n > 0 && !f.test && !strings.HasSuffix(p.dir, "test") {
				have[f.path] = n
			}
		}
	}
	for file, all := range madeObjects {
		want[file] = len(all)
	}
	if diff := cmp.Diff(want, have); diff != "" {
		t.Errorf("objects that the cloud makes (-listed +made):\n%s\nof %v", diff, slices.Sorted(maps.Keys(have)))
	}
}

func TestMadeObjects(t *testing.T) {
	const begin = "package x\nfunc f() {\n"
	for text, want := range map[string]int{
		"c.CoreV1().ConfigMaps(\"a\").Create(ctx, m, metav1.CreateOptions{})":                                     1,
		"made.Create(ctx, u, metav1.CreateOptions{DryRun: all})":                                                  1,
		"c.Resource(r).Apply(ctx, \"name\", metav1.ApplyOptions{})":                                               1,
		"c.AuthorizationV1().SubjectAccessReviews().Create(ctx, r, metav1.CreateOptions{})":                       0,
		"os.Create(\"file\"); c.CoreV1().Pods(\"a\").Get(ctx, \"name\", metav1.GetOptions{})":                     0,
		"a.Create(ctx, m, metav1.CreateOptions{}); if x { b.Create(ctx, m, metav1.CreateOptions{}) }; g.Create()": 2,
	} {
		if got := makes(pack(t, "cloud/x.go", begin+text+"\n}").files[0]); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}
