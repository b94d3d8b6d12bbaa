package arch_test

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// claimsPage has the table of fields, their writers, and the guards.
const claimsPage = "docs/dev/claims.md"

// ownKey finds names of labels and annotations of Skerry's in a string literal.
var ownKey = regexp.MustCompile(`^"((?:[a-z]+\.)?skerry\.io/[a-z-]*)"$`)

// TestClaims_24_TableHasEveryField: every field of objects that cloud and edge read
// (`x.Spec.Field`, `x.Status.Field`, labels and annotations of Skerry) is in the table of claims,
// and the tests that the table names exist.
func TestClaims_24_TableHasEveryField(t *testing.T) {
	s := source(t)
	page, err := os.ReadFile(filepath.Join(s.root, claimsPage))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, "|")
		if len(cells) < 6 {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			listed[m[1]] = true
		}
	}
	missing := unclaimed(s.packs, listed)
	for _, field := range missing {
		t.Errorf("code reads %s, and %s does not list who may write it: add it to a row, with its cost to others and the guard", field, claimsPage)
	}
	tests := map[string]bool{}
	for _, p := range s.packs {
		for _, f := range p.files {
			for _, d := range f.syntax.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && f.test {
					tests[fn.Name.Name] = true
				}
			}
		}
	}
	for _, m := range regexp.MustCompile("`(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(string(page), -1) {
		if !tests[m[1]] {
			t.Errorf("%s names the test %s, which does not exist", claimsPage, m[1])
		}
	}
}

// unclaimed are the fields and keys that the product reads and that are not in listed.
func unclaimed(packs []*sourcePack, listed map[string]bool) (missing []string) {
	for _, p := range packs {
		if !strings.HasPrefix(p.dir, "cloud/") && !strings.HasPrefix(p.dir, "edge/") && !strings.HasPrefix(p.dir, "common/claim") && p.dir != "common/api/v1alpha1" {
			continue
		}
		for _, f := range p.files {
			if f.test || f.generated {
				continue
			}
			ast.Inspect(f.syntax, func(n ast.Node) bool {
				field := ""
				switch n := n.(type) {
				case *ast.SelectorExpr:
					if of, ok := n.X.(*ast.SelectorExpr); ok && (of.Sel.Name == "Spec" || of.Sel.Name == "Status") && n.Sel.IsExported() && !strings.HasPrefix(n.Sel.Name, "DeepCopy") {
						field = of.Sel.Name + "." + n.Sel.Name
					}
				case *ast.BasicLit:
					if m := ownKey.FindStringSubmatch(n.Value); m != nil && m[1] != "skerry.io/" {
						field = m[1]
					}
				}
				if field != "" && !listed[field] && !slices.Contains(missing, field) {
					missing = append(missing, field)
				}
				return true
			})
		}
	}
	slices.Sort(missing)
	return missing
}

// A field that the table lacks is found, wherever it is read.
func TestUnclaimed_finds(t *testing.T) {
	s := &tree{}
	f, err := parse(token.NewFileSet(), "cloud/internal/x/x.go", []byte("package x\nfunc f(n node) { _ = n.Spec.Known; _ = n.Status.Wild.More; _ = n.Labels[\"skerry.io/odd\"] }"))
	if err != nil {
		t.Fatal(err)
	}
	s.packs = []*sourcePack{{dir: "cloud/internal/x", name: "x", files: []*sourceFile{f}}}
	if got := unclaimed(s.packs, map[string]bool{"Spec.Known": true}); !slices.Equal(got, []string{"Status.Wild", "skerry.io/odd"}) {
		t.Errorf("found %q", got)
	}
}
