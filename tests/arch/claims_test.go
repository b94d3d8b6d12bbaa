package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
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

// TestClaims_24_TableHasEveryField: every field of objects that cloud and edge read is in the table
// of claims: those of specs and statuses (`Spec.Field`), those below them (`Field`), and labels,
// annotations and taints, of Skerry and of Kubernetes. The tests that the table names exist.
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
			if _, field, ok := strings.Cut(m[1], "."); ok && !strings.Contains(m[1], "/") {
				listed[field] = true
			}
		}
	}
	missing := unclaimed(readAPI(t, s), s.packs, listed)
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

// api is the part of Kubernetes' and Skerry's API that a claim can be in.
type api struct {
	fields map[string]bool   // names of fields of all structs, but those of identity
	keys   map[string]string // constants of labels, annotations and taints, with their values
}

// identity are fields that kube-apiserver judges or sets, and names that other types share.
var identity = strings.Fields("Name Namespace UID Kind Group Version Resource ResourceVersion APIVersion APIGroup Generation Finalizers Items Spec Status " +
	"Add Drop Set Error Key Value Operator Reporter")

// claimPackages are those of Kubernetes whose objects the table is about.
var claimPackages = []string{"k8s.io/api/core/v1", "k8s.io/api/discovery/v1", "k8s.io/api/coordination/v1", "k8s.io/api/networking/v1"}

// read adds the structs and constants of a file.
func (a *api) read(f *ast.File) {
	for _, d := range f.Decls {
		of, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range of.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				if fields, ok := s.Type.(*ast.StructType); ok {
					for _, field := range fields.Fields.List {
						for _, n := range field.Names {
							if n.IsExported() && !slices.Contains(identity, n.Name) {
								a.fields[n.Name] = true
							}
						}
					}
				}
			case *ast.ValueSpec:
				for i, n := range s.Names {
					if i >= len(s.Values) || !claimKey.MatchString(n.Name) || strings.HasPrefix(n.Name, "TaintEffect") {
						continue
					}
					if v, ok := s.Values[i].(*ast.BasicLit); ok {
						a.keys[n.Name] = strings.Trim(v.Value, `"`)
					}
				}
			}
		}
	}
}

// claimKey finds the constants that are names of labels, annotations and taints.
var claimKey = regexp.MustCompile(`^(Label|Annotation|Deprecated.*Annotation|Taint|MirrorPod|PodDeletionCost|Endpoints)[A-Z]`)

// readAPI reads the packages from the module cache, and Skerry's own.
func readAPI(t *testing.T, s *tree) *api {
	t.Helper()
	a := &api{map[string]bool{}, map[string]string{}}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-f", "{{.Dir}}"}, claimPackages...)...)
	cmd.Dir = s.root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("where Kubernetes' API is: %v", err)
	}
	for dir := range strings.FieldsSeq(string(out)) {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no source: %v", dir, err)
		}
		for _, name := range files {
			if strings.Contains(filepath.Base(name), "generated") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			a.read(f)
		}
	}
	for _, p := range s.packs {
		for _, f := range p.files {
			if p.dir == "common/api/v1alpha1" && !f.test && !f.generated {
				a.read(f.syntax)
			}
		}
	}
	return a
}

// uses returns the names by which a file knows other packages, and whether one of them has objects.
func uses(f *ast.File) (names map[string]bool, objects bool) {
	names = map[string]bool{}
	for _, i := range f.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		if i.Name != nil {
			names[i.Name.Name] = true
		} else {
			names[path[strings.LastIndexByte(path, '/')+1:]] = true
		}
		objects = objects || strings.HasPrefix(path, "k8s.io/api/") || strings.HasSuffix(path, "common/api/v1alpha1") || strings.HasSuffix(path, "meta/v1/unstructured")
	}
	return names, objects
}

// unclaimed are the fields and keys that the product reads and that are not in listed.
func unclaimed(a *api, packs []*sourcePack, listed map[string]bool) (missing []string) {
	for _, p := range packs {
		if !strings.HasPrefix(p.dir, "cloud/") && !strings.HasPrefix(p.dir, "edge/") && !strings.HasPrefix(p.dir, "common/claim") && p.dir != "common/api/v1alpha1" {
			continue
		}
		for _, f := range p.files {
			if f.test || f.generated {
				continue
			}
			names, objects := uses(f.syntax)
			ast.Inspect(f.syntax, func(n ast.Node) bool {
				if _, ok := n.(*ast.ImportSpec); ok {
					return false
				}
				if field := a.claimed(n, names, objects); field != "" && !listed[field] && !slices.Contains(missing, field) {
					missing = append(missing, field)
				}
				return true
			})
		}
	}
	slices.Sort(missing)
	return missing
}

// claimed is the field or the key that a node of the source reads; "" for none. A field below the
// spec and the status, or of a part that has a variable of its own, counts by its name alone, in
// files that know objects.
func (a *api) claimed(n ast.Node, names map[string]bool, objects bool) string {
	switch n := n.(type) {
	case *ast.SelectorExpr:
		if of, ok := n.X.(*ast.Ident); ok && names[of.Name] {
			return a.keys[n.Sel.Name]
		}
		if of, ok := n.X.(*ast.SelectorExpr); ok && (of.Sel.Name == "Spec" || of.Sel.Name == "Status") && n.Sel.IsExported() && !strings.HasPrefix(n.Sel.Name, "DeepCopy") {
			return of.Sel.Name + "." + n.Sel.Name
		}
		if objects && a.fields[n.Sel.Name] {
			return n.Sel.Name
		}
	case *ast.BasicLit:
		if m := ownKey.FindStringSubmatch(n.Value); m != nil && m[1] != "skerry.io/" {
			return m[1]
		}
		if m := kubernetesKey.FindStringSubmatch(n.Value); m != nil {
			return m[1]
		}
	}
	return ""
}

// kubernetesKey finds names of labels and annotations of Kubernetes' in a string literal, and
// leaves versions of its groups.
var kubernetesKey = regexp.MustCompile(`^"((?:[a-z0-9-]+\.)*(?:kubernetes|k8s)\.io/(?:[a-uw-z][a-zA-Z0-9._-]*|v[a-z][a-zA-Z0-9._-]*))"$`)

// A field that the table lacks is found, wherever it is read, also of a part of an object.
func TestUnclaimed_finds(t *testing.T) {
	a := &api{map[string]bool{}, map[string]string{}}
	types, err := parse(token.NewFileSet(), "types.go", []byte("package v1\nconst LabelOdd = \"kubernetes.io/odd\"\ntype EndpointHints struct { ForNodes []string; Name string }"))
	if err != nil {
		t.Fatal(err)
	}
	a.read(types.syntax)
	const begin = "package x\nimport corev1 \"k8s.io/api/core/v1\"\nfunc f(n node) {"
	for text, want := range map[string][]string{
		"_ = n.Spec.Known; _ = n.Status.Wild.More; _ = n.Labels[\"skerry.io/odd\"]": {"Status.Wild", "skerry.io/odd"},
		"s := n.Spec; _ = s.Hints.ForNodes; _ = s.Hints.Name":                       {"ForNodes"},
		"_ = n.Labels[corev1.LabelOdd]; _ = n.Labels[corev1.Other]":                 {"kubernetes.io/odd"},
		"_ = n.Labels[\"node.kubernetes.io/lit\"]; _ = \"apps.k8s.io/v1\"":          {"node.kubernetes.io/lit"},
	} {
		f, err := parse(token.NewFileSet(), "cloud/internal/x/x.go", []byte(begin+text+"}"))
		if err != nil {
			t.Fatal(err)
		}
		packs := []*sourcePack{{dir: "cloud/internal/x", name: "x", files: []*sourceFile{f}}}
		if got := unclaimed(a, packs, map[string]bool{"Spec.Known": true}); !slices.Equal(got, want) {
			t.Errorf("%s: found %q, want %q", text, got, want)
		}
	}
}
