package arch_test

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// startingCalls start goroutines of a library, which last until they are ended.
var startingCalls = []string{
	"record.NewBroadcaster", "workqueue.NewTypedDelayingQueue", "workqueue.NewTypedRateLimitingQueue", "workqueue.NewTypedRateLimitingQueueWithConfig",
	"http.Serve", "http.ListenAndServe", "time.AfterFunc",
}

// A constructor starts nothing: a module lives from Run to the end of its context. One that is
// never run, as in a failed start, must leave no goroutine.
func TestNewStartsNothing(t *testing.T) {
	for _, p := range source(t).packs {
		for _, bad := range starts(p) {
			t.Error(bad)
		}
	}
}

// starts returns the constructors of a package that start goroutines, themselves or in functions of
// their package that they call.
func starts(p *sourcePack) (bad []string) {
	if !p.product() {
		return nil
	}
	funcs := map[string]*ast.FuncDecl{}
	for _, f := range p.files {
		if f.test {
			continue
		}
		for _, d := range f.syntax.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Recv == nil && d.Body != nil {
				funcs[d.Name.Name] = d
			}
		}
	}
	for _, f := range p.files {
		if f.test {
			continue
		}
		for _, d := range f.syntax.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || d.Body == nil || !strings.HasPrefix(d.Name.Name, "New") {
				continue
			}
			if how := startsIn(d, funcs, map[*ast.FuncDecl]bool{}); how != "" {
				bad = append(bad, fmt.Sprintf("%s: %s starts a goroutine (%s): start it in Run, or call it Start...", f.path, d.Name.Name, how))
			}
		}
	}
	return bad
}

// startsIn returns how a function starts a goroutine, "" if it does not. Functions that are only
// made there, as for Run, are not called.
func startsIn(d *ast.FuncDecl, funcs map[string]*ast.FuncDecl, seen map[*ast.FuncDecl]bool) (how string) {
	if seen[d] {
		return ""
	}
	seen[d] = true
	ast.Inspect(d.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.GoStmt:
			how = "go"
		case *ast.CallExpr:
			switch name := strings.Split(callee(n), "[")[0]; {
			case slices.Contains(startingCalls, name):
				how = name
			case strings.HasSuffix(name, ".Go"):
				how = name
			case funcs[name] != nil && how == "":
				how = startsIn(funcs[name], funcs, seen)
			}
		}
		return how == ""
	})
	return how
}

// callee is the name of a called function, with its package or value.
func callee(c *ast.CallExpr) string {
	switch f := ast.Unparen(c.Fun).(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok {
			return x.Name + "." + f.Sel.Name
		}
		return "." + f.Sel.Name
	case *ast.IndexExpr:
		return callee(&ast.CallExpr{Fun: f.X})
	}
	return ""
}
