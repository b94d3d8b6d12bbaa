package arch_test

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

// controllers is the wing whose packages use the frame in controllerKit, and must not import
// controllerParts, which the frame owns (docs/dev/controller.md).
const (
	controllers   = "cloud/internal/controllers"
	controllerKit = controllers + "/controller"
)

// controllerParts are functions of which a controller is made, by package and the begin of a name.
var controllerParts = map[string][]string{
	module + "/common/rerun":                {"New"},
	module + "/cloud/internal/core/kube":    {"Work"},
	"k8s.io/client-go/util/workqueue":       {"New"},
	"k8s.io/client-go/tools/record":         {"New"},
	"k8s.io/client-go/tools/cache":          {"NewShared", "NewInformer", "NewReflector"},
	"k8s.io/client-go/informers":            {"NewShared"},
	"k8s.io/client-go/dynamic":              {"New"},
	"k8s.io/client-go/kubernetes":           {"New"},
	"k8s.io/client-go/rest":                 {"RESTClientFor", "HTTPClientFor"},
	"k8s.io/client-go/tools/leaderelection": {"New", "Run"},
}

// controllerExceptions are files that use such a function without being a controller, each with its
// reason.
var controllerExceptions = map[string]string{
	controllers + "/reports/aggregate.go": "the queue is of reports of sessions, which every replica has",
}

// otherController returns where a package of the wing is a controller without the frame.
func otherController(p *sourcePack) (bad []string) {
	if !within(p.dir, controllers) || within(p.dir, controllerKit) {
		return nil
	}
	for _, f := range p.files {
		if f.test || controllerExceptions[f.path] != "" {
			continue
		}
		imported := map[string]string{} // paths, by the name in this file
		for i, spec := range f.syntax.Imports {
			name := path.Base(f.imports[i])
			if spec.Name != nil {
				name = spec.Name.Name
			}
			imported[name] = f.imports[i]
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			use, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, ok := use.X.(*ast.Ident)
			if ok && slices.ContainsFunc(controllerParts[imported[of.Name]], func(begin string) bool { return strings.HasPrefix(use.Sel.Name, begin) }) {
				bad = append(bad, fmt.Sprintf("%s uses %s.%s: a controller is a Config of %s", f.path, of.Name, use.Sel.Name, controllerKit))
			}
			return true
		})
	}
	return bad
}

func TestOneWayToWriteAController(t *testing.T) {
	for _, p := range source(t).packs {
		for _, bad := range otherController(p) {
			t.Error(bad)
		}
	}
}

func TestOtherController(t *testing.T) {
	const loop = "package x\nimport \"" + module + "/common/rerun\"\nvar l = rerun.New(nil, rerun.Config{})\n"
	for name, c := range map[string]struct {
		file, text string
		want       int
	}{
		"a loop":         {controllers + "/x/x.go", loop, 1},
		"another name":   {controllers + "/x/y/x.go", strings.NewReplacer("import ", "import r ", "rerun.New", "r.New").Replace(loop), 1},
		"a pause":        {controllers + "/x/x.go", strings.ReplaceAll(loop, "rerun.New", "rerun.Pause"), 0},
		"events":         {controllers + "/x/x.go", "package x\nimport \"k8s.io/client-go/tools/record\"\nvar b = record.NewBroadcaster()\n", 1},
		"the frame's":    {controllerKit + "/x.go", loop, 0},
		"a test's":       {controllers + "/x/x_test.go", loop, 0},
		"no controller":  {"cloud/internal/core/x/x.go", loop, 0},
		"an exception's": {controllers + "/reports/aggregate.go", loop, 0},
	} {
		if got := otherController(pack(t, c.file, c.text)); len(got) != c.want {
			t.Errorf("%s: %q, want %d", name, got, c.want)
		}
	}
}
