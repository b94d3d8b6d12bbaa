package arch_test

import (
	"go/token"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// pack makes a package of one file.
func pack(t *testing.T, file, text string) *sourcePack {
	t.Helper()
	f, err := parse(token.NewFileSet(), file, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return &sourcePack{dir: path.Dir(file), name: f.syntax.Name.Name, files: []*sourceFile{f}}
}

// A rule that never fails is worthless: each is shown its violation.
func TestRules_findWhatTheyMust(t *testing.T) {
	imports := func(paths ...string) string {
		return "package x\nimport (\n_ \"" + strings.Join(paths, "\"\n_ \"") + "\"\n)\n"
	}
	for name, c := range map[string]struct {
		file, text string
		rule       func(*sourcePack) []string
		want       []string
	}{
		"down the ladder": {"edge/internal/core/metamanager/x.go", imports(module+"/edge/internal/core/store", module+"/beehive", "fmt"), climbs, nil},
		"in one room":     {"common/link/wslink/x.go", imports(module + "/common/link"), climbs, nil},
		"up the ladder": {
			"beehive/x.go", imports(module + "/common/link"), climbs, []string{"beehive/x.go imports common/link, of a step above"},
		},
		"across a step": {
			"cloud/internal/core/relay/x.go", imports(module + "/cloud/internal/core/publish"), climbs,
			[]string{"cloud/internal/core/relay/x.go imports cloud/internal/core/publish, of its own step: declare the interface it needs, or move one of them"},
		},
		"off the ladder": {"edge/internal/new/x.go", imports("fmt"), climbs, []string{"edge/internal/new has no step: add it to the ladder in tests/arch"}},
		"into the tests": {
			"edge/app/x.go", imports(module + "/tests/cluster"), climbs,
			[]string{"edge/app/x.go imports tests/cluster: the product does not need its tests and tools"},
		},
		"a test is free": {"beehive/x_test.go", imports(module+"/common/link", "os/exec"), climbs, nil},
		"the store's own": {
			"edge/internal/core/metamanager/x.go", imports("go.etcd.io/bbolt", "go.etcd.io/bbolt/errors"), trespasses,
			[]string{
				"edge/internal/core/metamanager/x.go imports go.etcd.io/bbolt, which is for edge/internal/core/store alone: one writer, one place that knows the file",
				"edge/internal/core/metamanager/x.go imports go.etcd.io/bbolt/errors, which is for edge/internal/core/store alone: one writer, one place that knows the file",
			},
		},
		"wide comments": {
			"beehive/x.go", "package x\n\n// " + strings.Repeat("word ", 20) + "\n\t// " + strings.Repeat("word ", 20) + "\n//\t" + strings.Repeat("word ", 20) +
				"\n// " + strings.Repeat("w", 100) + "\n// short\n", wideComments, []string{"beehive/x.go:3: a comment is wider than 100 columns", "beehive/x.go:4: a comment is wider than 100 columns"},
		},
		"a driver's": {"edge/internal/kernel/network/netroute/x.go", imports("os/exec", "github.com/vishvananda/netlink"), trespasses, nil},
		"state": {
			"beehive/x.go", `package x
var Empty int
var counter = 1
var cache = map[string]int{"a": 1}
var table = map[string]int{"a": 1}
var names = []string{"a"}
var ErrX = errors.New("x")
var T = message.NewTopic[int]("x", message.Insert, message.Every)
var shared = newThing()
var pair = newPair()
var bucket = []byte("b")
var _ Module = (*module)(nil)
//go:embed x.yaml
var file string
func init() {}
func newThing() *thing { cache["b"] = 2; names[0]++; return nil }
func newPair() pair { return pair{} }
`, (*sourcePack).state, []string{
				"beehive/x.go: package-level variable Empty has no value, so it must be written to later",
				"beehive/x.go: package-level variable counter is no error, topic, regular expression or table: make it a const, a function's, or a field",
				"beehive/x.go: package-level variable cache is written to",
				"beehive/x.go: package-level variable names is written to",
				"beehive/x.go: package-level variable shared is no error, topic, regular expression or table: make it a const, a function's, or a field",
				"beehive/x.go has a func init: let the caller call",
			},
		},
		"methods by reflection": {
			"beehive/x.go", "package x\nimport (\n\"html/template\"\n\"reflect\"\n)\nfunc f(t reflect.Type) int { for range t.Methods() {}; return t.NumMethod() }\n", reflects,
			[]string{"beehive/x.go imports html/template, which looks up methods by reflection", "beehive/x.go looks up methods by reflection: Methods"},
		},
		"constructors that start": {
			"beehive/x.go", `package x
func New() *T { go f(); return nil }
func NewQueue() *T { return made() }
func made() *T { return &T{q: workqueue.NewTypedRateLimitingQueue[int](nil)} }
func NewGroup(g group) { g.Go(f) }
func NewQuiet() *T { return &T{run: func() { go f() }} }
func Start() { go f() }
`, starts, []string{
				"beehive/x.go: New starts a goroutine (go): start it in Run, or call it Start...",
				"beehive/x.go: NewQueue starts a goroutine (workqueue.NewTypedRateLimitingQueue): start it in Run, or call it Start...",
				"beehive/x.go: NewGroup starts a goroutine (g.Go): start it in Run, or call it Start...",
			},
		},
		"a request's method": {"beehive/x.go", "package x\nfunc f(r request) string { return r.Method }\n", reflects, nil},
		"state of tests":     {"tests/x/x.go", "package x\nvar X int\n", (*sourcePack).state, nil},
		"a good comment":     {"beehive/x.go", "// Package x does.\npackage x\n", (*sourcePack).comments, nil},
		"a command's":        {"edge/cmd/x/x.go", "// Command x does.\npackage main\n", (*sourcePack).comments, nil},
		"a comment astray":   {"beehive/x.go", "// X does.\npackage x\n", (*sourcePack).comments, []string{`beehive/x.go: the package comment begins with "X does.", want "Package x "`}},
		"no comment": {
			"beehive/x.go", "package x\n", (*sourcePack).comments,
			[]string{"beehive has no package comment: say what it owns, what it refuses, and its rule for concurrency"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.rule(pack(t, c.file, c.text))); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestForeignNames_findWhatTheyMust(t *testing.T) {
	for text, want := range map[string]bool{
		"cd /wo" + "rk/main":                    true,
		"see (/ho" + "me/developer/x)":          true,
		"image: do" + "cker.io/library/busybox": true,
		"GOPROXY=https://" + strings.Join([]string{"proxy", "golang", "org"}, "."): true,
		strings.Join([]string{"the network", "work", "flow"}, "/"):                 false,
		"/var/lib/skerry/work":        false,
		"https://pkg.go.dev/net/http": false,
	} {
		found := false
		for _, r := range foreign {
			found = found || r.MatchString(text)
		}
		if found != want {
			t.Errorf("%q: found %v, want %v", text, found, want)
		}
	}
}
