// Package metrics_test compares docs/metrics.md with the source; UPDATE=1 writes the page.
package metrics_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/common/nodemetrics"
	"github.com/skerry-io/skerry/tests/golden"
)

// family is a metric family.
type family struct {
	name, kind, help string
	labels           []string
}

func TestMetricsPage(t *testing.T) {
	root := filepath.Join("..", "..")
	var b strings.Builder
	b.WriteString(`# Metrics

All metrics of the two programs, generated from the source
(` + "`UPDATE=1 go test ./tests/metrics`" + `). In addition there are Go's and the process' (` + "`go_*`, `process_*`" + `).
[monitoring.md](monitoring.md) describes the endpoints and the alerts.
`)
	for _, program := range []struct {
		name string
		dirs []string
	}{{"cloudcore", []string{"cloud", "common"}}, {"edgecore", []string{"edge", "common"}}} {
		found := map[string]family{}
		for _, dir := range program.dirs {
			for _, f := range scan(t, filepath.Join(root, dir)) {
				found[f.name] = f
			}
		}
		if program.name == "cloudcore" {
			for _, f := range devices() {
				found[f.name] = f
			}
		}
		if len(found) < 30 {
			t.Errorf("%s: %d families were found: is a new way of making them not read?", program.name, len(found))
		}
		fmt.Fprintf(&b, "\n## %s\n| metric | type | labels | help |\n| --- | --- | --- | --- |\n", program.name)
		for _, name := range slices.Sorted(maps.Keys(found)) {
			f := found[name]
			for _, wrong := range lint(f) {
				t.Errorf("%s: %s", f.name, wrong)
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, strings.Join(f.labels, ", "), strings.ReplaceAll(f.help, "|", `\|`))
		}
	}
	b.WriteString("\n## kube-state-metrics\nWith `manifests/monitoring/kube-state-metrics.yaml`.\n\n| metric | type | labels | help |\n| --- | --- | --- | --- |\n")
	for _, f := range objects(t, filepath.Join(root, "manifests", "monitoring", "kube-state-metrics.yaml")) {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.name, f.kind, strings.Join(f.labels, ", "), f.help)
	}
	t.Chdir(filepath.Join(root, "docs"))
	golden.Check(t, "metrics.md", b.String())
}

// devices are the metrics that devices sample.
func devices() (all []family) {
	for _, s := range nodemetrics.All() {
		if s.Heartbeat {
			continue // cloudcore has them of heartbeats, and only the sink has the samples
		}
		f := family{name: s.Name, kind: "gauge", help: s.Help, labels: []string{"node"}}
		if s.Counter {
			f.kind = "counter"
		}
		if s.Label != "" {
			f.labels = append(f.labels, s.Label)
		}
		all = append(all, f)
	}
	return all
}

// objects are the metrics that a configuration has kube-state-metrics make.
func objects(t *testing.T, path string) (all []family) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Spec struct {
			Resources []struct {
				MetricNamePrefix string
				LabelsFromPath   map[string][]string
				Metrics          []struct {
					Name, Help string
					Each       struct {
						Type        string
						Gauge, Info struct{ LabelsFromPath map[string][]string }
					}
				}
			}
		}
	}
	if err := yaml.Unmarshal(raw, &config); err != nil {
		t.Fatal(err)
	}
	for _, r := range config.Spec.Resources {
		for _, m := range r.Metrics {
			labels := map[string][]string{}
			maps.Copy(labels, r.LabelsFromPath)
			maps.Copy(labels, m.Each.Gauge.LabelsFromPath)
			maps.Copy(labels, m.Each.Info.LabelsFromPath)
			if m.Help == "" || m.Each.Type != "Gauge" && m.Each.Type != "Info" {
				t.Errorf("%s: %+v", r.MetricNamePrefix, m)
			}
			all = append(all, family{r.MetricNamePrefix + "_" + m.Name, strings.ToLower(m.Each.Type), m.Help, slices.Sorted(maps.Keys(labels))})
		}
	}
	slices.SortFunc(all, func(a, b family) int { return strings.Compare(a.name, b.name) })
	return all
}

// lint has the rules of Prometheus' own linter that need no values: the trial's test runs that one.
func lint(f family) (wrong []string) {
	switch {
	case f.help == "":
		wrong = append(wrong, "it has no help")
	case strings.HasSuffix(f.name, "_total") != (f.kind == "counter"):
		wrong = append(wrong, "counters, and no others, end in _total")
	case strings.ToLower(f.name) != f.name:
		wrong = append(wrong, "names are of small letters")
	}
	for _, unit := range []string{"_milliseconds", "_minutes", "_kilobytes", "_percent"} {
		if strings.Contains(f.name, unit) {
			wrong = append(wrong, "units are base units: seconds, bytes, ratios")
		}
	}
	return wrong
}

func scan(t *testing.T, dir string) (all []family) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		uses := slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool {
			return i.Path.Value == `"github.com/prometheus/client_golang/prometheus"`
		})
		if uses {
			all = append(all, families(file)...)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// maker is a function of a file that makes metrics of a prefix: name is its first parameter.
type maker struct {
	prefix, kind string
	labels       []string
}

func families(file *ast.File) (all []family) {
	makers := map[string]maker{}
	see := func(name string, params *ast.FieldList, body *ast.BlockStmt) {
		if len(params.List) == 0 || len(params.List[0].Names) == 0 || params.List[0].Names[0].Name != "name" {
			return
		}
		if m, ok := makerOf(body, makers); ok {
			makers[name] = m
		}
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if ok && f.Body != nil && f.Recv == nil {
			see(f.Name.Name, f.Type.Params, f.Body)
		}
	}
	var vectors []ast.Node // calls of New...Vec
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, right := range n.Rhs {
				if lit, ok := right.(*ast.FuncLit); ok && i < len(n.Lhs) {
					if name, ok := n.Lhs[i].(*ast.Ident); ok {
						see(name.Name, lit.Type.Params, lit.Body)
					}
				}
			}
		case *ast.CallExpr:
			if strings.HasSuffix(called(n), "Vec") {
				vectors = append(vectors, n)
			}
			if m, ok := makers[called(n)]; ok && len(n.Args) > 1 {
				if name, ok := text(n.Args[0]); ok {
					help, _ := text(n.Args[1])
					f := family{m.prefix + name, kindOf(m.kind, name), help, m.labels}
					for _, a := range n.Args[2:] {
						if label, ok := text(a); ok {
							f.labels = append(f.labels, label)
						}
					}
					all = append(all, f.within(n, vectors))
				}
			}
			if called(n) == "NewDesc" {
				if name, ok := text(n.Args[0]); ok {
					help, _ := text(n.Args[1])
					f := family{name, kindOf("", name), help, texts(n.Args[2])}
					if len(n.Args) > 3 {
						f.labels = append(f.labels, keys(n.Args[3])...)
					}
					all = append(all, f)
				}
			}
		case *ast.CompositeLit:
			subsystem, name, help, ok := opts(n)
			if literal, isText := text(name); ok && isText {
				if !strings.HasPrefix(literal, "skerry_") {
					literal = "skerry_" + subsystem + literal
				}
				all = append(all, family{literal, kindOf(typeOf(n), literal), help, nil}.within(n, vectors))
			}
		}
		return true
	})
	return all
}

// within adds the labels of the vector that a family's options are given to.
func (f family) within(n ast.Node, vectors []ast.Node) family {
	for _, v := range vectors {
		if call := v.(*ast.CallExpr); v.Pos() <= n.Pos() && n.End() <= v.End() && len(call.Args) == 2 {
			f.labels = append(f.labels, texts(call.Args[1])...)
		}
	}
	return f
}

func makerOf(body *ast.BlockStmt, makers map[string]maker) (m maker, ok bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BinaryExpr:
			if prefix, is := text(n.X); is && strings.HasPrefix(prefix, "skerry_") {
				if y, is := n.Y.(*ast.Ident); is && y.Name == "name" {
					m.prefix, ok = prefix, true
				}
			}
		case *ast.CompositeLit:
			if subsystem, name, _, is := opts(n); is {
				if y, is := name.(*ast.Ident); is && y.Name == "name" {
					m.prefix, m.kind, ok = "skerry_"+subsystem, typeOf(n), true
				}
			}
		case *ast.CallExpr:
			if called(n) == "NewDesc" && len(n.Args) > 2 {
				m.labels = texts(n.Args[2])
			}
			if outer, is := makers[called(n)]; is && len(n.Args) > 0 {
				if y, is := n.Args[0].(*ast.Ident); is && y.Name == "name" {
					m, ok = outer, true
				}
			}
		}
		return true
	})
	return m, ok
}

// opts reads prometheus.CounterOpts{...} and its like.
func opts(n *ast.CompositeLit) (subsystem string, name ast.Expr, help string, ok bool) {
	if !strings.HasSuffix(typeOf(n), "Opts") {
		return "", nil, "", false
	}
	for _, e := range n.Elts {
		kv, is := e.(*ast.KeyValueExpr)
		if !is {
			continue
		}
		key, _ := kv.Key.(*ast.Ident)
		switch key.Name {
		case "Subsystem":
			subsystem, _ = text(kv.Value)
			subsystem += "_"
		case "Name":
			name, ok = kv.Value, true
		case "Help":
			help, _ = text(kv.Value)
		}
	}
	return subsystem, name, help, ok
}

func typeOf(n *ast.CompositeLit) string {
	if s, ok := n.Type.(*ast.SelectorExpr); ok {
		return s.Sel.Name
	}
	return ""
}

func kindOf(options, name string) string {
	switch {
	case strings.HasPrefix(options, "Histogram"):
		return "histogram"
	case strings.HasPrefix(options, "Counter"), strings.HasSuffix(name, "_total"):
		return "counter"
	}
	return "gauge"
}

func called(n *ast.CallExpr) string {
	switch f := n.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if p, ok := f.X.(*ast.Ident); ok && p.Name == "prometheus" {
			return f.Sel.Name
		}
	}
	return ""
}

// text is a string in the source, or several that are added up.
func text(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		x, first := text(e.X)
		y, second := text(e.Y)
		return x + y, first && second
	}
	return "", false
}

func texts(e ast.Expr) (all []string) {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	for _, one := range lit.Elts {
		if s, ok := text(one); ok {
			all = append(all, s)
		}
	}
	return all
}

// keys are the names of constant labels.
func keys(e ast.Expr) (all []string) {
	lit, ok := e.(*ast.CompositeLit)
	if !ok {
		return nil
	}
	for _, one := range lit.Elts {
		if kv, ok := one.(*ast.KeyValueExpr); ok {
			if s, ok := text(kv.Key); ok {
				all = append(all, s)
			}
		}
	}
	return all
}
