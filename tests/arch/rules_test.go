package arch_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPackageComments(t *testing.T) {
	for _, p := range source(t).packs {
		for _, bad := range p.comments() {
			t.Error(bad)
		}
	}
}

// comments returns the mistakes of a package's comment.
func (p *sourcePack) comments() (bad []string) {
	if p.name == "" {
		return nil // only tests
	}
	start := "Package " + p.name + " "
	if p.name == "main" {
		start = "Command "
	}
	var with []string
	for _, f := range p.files {
		if f.test || f.generated || f.syntax.Doc == nil {
			continue
		}
		with = append(with, f.path)
		if text := f.syntax.Doc.Text(); !strings.HasPrefix(text, start) {
			first, _, _ := strings.Cut(text, "\n")
			bad = append(bad, fmt.Sprintf("%s: the package comment begins with %q, want %q", f.path, first, start))
		}
	}
	onlyGenerated := !slices.ContainsFunc(p.files, func(f *sourceFile) bool { return !f.test && !f.generated })
	if len(with) == 0 && !onlyGenerated {
		bad = append(bad, p.dir+" has no package comment: say what it owns, what it refuses, and its rule for concurrency")
	}
	if len(with) > 1 {
		bad = append(bad, p.dir+" has more than one package comment: "+strings.Join(with, ", "))
	}
	return bad
}

// allowedVars are the package-level variables that a process changes, each with its reason.
var allowedVars = map[string]string{
	"beehive/message.lastID":            "numbers need only be unique in the process",
	"common/version.version":            "the linker sets it",
	"common/version.registry":           "the linker sets it",
	"common/recovery.panics":            "counts the panics of the process, whoever of it had them",
	"edge/internal/core/edgeapi.codecs": "client-go's scheme never changes once it is made, and codecs keep nothing",
}

// constantCalls make values that never change: an initial value by one of these is as good as a
// constant.
var constantCalls = []string{
	"errors.New", "fmt.Errorf", "regexp.MustCompile", "message.NewTopic", "reflect.TypeFor", "time.Date", "time.Unix",
	"netip.MustParsePrefix", "netip.MustParseAddr",
	"sync.OnceValue", "sync.OnceValues", // a table that costs too much to make before it is needed
}

// Two edges and two clouds must fit in one process, so no package keeps state: no init, and
// variables only for constant values.
func TestNoGlobalState(t *testing.T) {
	for _, p := range source(t).packs {
		for _, bad := range p.state() {
			t.Error(bad)
		}
	}
}

// state returns the parts of a package that are state.
func (p *sourcePack) state() (bad []string) {
	if !p.product() {
		return nil
	}
	written := p.written()
	for _, f := range p.files {
		if f.test || f.generated {
			continue
		}
		for _, d := range f.syntax.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == "init" && d.Recv == nil {
					bad = append(bad, f.path+" has a func init: let the caller call")
				}
			case *ast.GenDecl:
				if d.Tok != token.VAR {
					continue
				}
				for _, s := range d.Specs {
					if s, ok := s.(*ast.ValueSpec); ok {
						for _, v := range p.globals(s, d, written) {
							bad = append(bad, f.path+": package-level variable "+v)
						}
					}
				}
			}
		}
	}
	return bad
}

// globals returns the mistakes in the variables of one declaration.
func (p *sourcePack) globals(s *ast.ValueSpec, d *ast.GenDecl, written map[string]bool) []string {
	var bad []string
	for i, name := range s.Names {
		_, allowed := allowedVars[p.dir+"."+name.Name]
		switch {
		case name.Name == "_" || allowed || embeds(s.Doc) || embeds(d.Doc):
		case written[name.Name]:
			bad = append(bad, name.Name+" is written to")
		case len(s.Values) == 0:
			bad = append(bad, name.Name+" has no value, so it must be written to later")
		case i < len(s.Values) && !p.constant(s.Values[i]) || len(s.Values) != len(s.Names):
			bad = append(bad, name.Name+" is no error, topic, regular expression or table: make it a const, a function's, or a field")
		}
	}
	return bad
}

func embeds(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") })
}

// constant reports whether a value is fit to stay as it is: a table, or a call whose result never
// changes, such as a struct by value.
func (p *sourcePack) constant(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.CompositeLit:
		return true
	case *ast.SelectorExpr:
		return strings.HasPrefix(e.Sel.Name, "Err") // another package's sentinel
	case *ast.CallExpr:
		f := e.Fun
		if _, conversion := f.(*ast.ArrayType); conversion { // []byte("...")
			return len(e.Args) == 1 && isLiteral(e.Args[0])
		}
		switch generic := f.(type) { // NewTopic[T](...)
		case *ast.IndexExpr:
			f = generic.X
		case *ast.IndexListExpr:
			f = generic.X
		}
		if own, ok := f.(*ast.Ident); ok {
			return p.makesValue(own.Name)
		}
		if method, ok := f.(*ast.SelectorExpr); ok && slices.Contains([]string{"WithResource", "WithKind", "GroupResource"}, method.Sel.Name) {
			return true // names of Kubernetes' resources
		}
		return slices.Contains(constantCalls, types.ExprString(f))
	}
	return false
}

// makesValue reports whether a function of the package returns one value of a named type, and no
// pointer, map, slice, channel or function.
func (p *sourcePack) makesValue(name string) bool {
	for _, f := range p.files {
		for _, d := range f.syntax.Decls {
			d, ok := d.(*ast.FuncDecl)
			if !ok || d.Recv != nil || d.Name.Name != name || d.Type.Results.NumFields() != 1 {
				continue
			}
			switch d.Type.Results.List[0].Type.(type) {
			case *ast.Ident, *ast.SelectorExpr:
				return true
			}
		}
	}
	return false
}

func isLiteral(e ast.Expr) bool {
	_, ok := e.(*ast.BasicLit)
	return ok
}

// written lists the names that the package's code assigns to, takes the address of, or has builtins
// change. It ignores scopes: a local variable with the name of a package's one counts too, and
// should get another name.
func (p *sourcePack) written() map[string]bool {
	all := map[string]bool{}
	add := func(e ast.Expr) {
		for {
			switch x := e.(type) {
			case *ast.IndexExpr:
				e = x.X
			case *ast.SelectorExpr:
				e = x.X
			case *ast.ParenExpr:
				e = x.X
			case *ast.StarExpr:
				e = x.X
			case *ast.Ident:
				all[x.Name] = true
				return
			default:
				return
			}
		}
	}
	for _, f := range p.files {
		if f.test {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				if n.Tok != token.DEFINE {
					for _, e := range n.Lhs {
						add(e)
					}
				}
			case *ast.IncDecStmt:
				add(n.X)
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					add(n.X)
				}
			case *ast.CallExpr:
				if name, ok := n.Fun.(*ast.Ident); ok && slices.Contains([]string{"delete", "clear", "copy"}, name.Name) && len(n.Args) > 0 {
					add(n.Args[0])
				}
			}
			return true
		})
	}
	return all
}

// columns is how wide the text of a comment may be, with tabs of four.
const columns = 100

func TestCommentsAreWrapped(t *testing.T) {
	for _, p := range source(t).packs {
		for _, complaint := range wideComments(p) {
			t.Error(complaint)
		}
	}
}

// wideComments leaves the CRDs' types alone: their comments become descriptions, in which line
// breaks would stay.
func wideComments(p *sourcePack) (complaints []string) {
	for _, f := range p.files {
		if f.generated || within(p.dir, "common/api") {
			continue
		}
		for _, line := range f.wide {
			complaints = append(complaints, fmt.Sprintf("%s:%d: a comment is wider than %d columns", f.path, line, columns))
		}
	}
	return complaints
}

// prose is a line of a comment that has a line to itself and could be wrapped: it is not
// preformatted, no directive, and of more than one word.
var prose = regexp.MustCompile(`^\t*// [^\s+]\S* \S`)

// wide returns the lines with comments that are too wide.
func wide(fset *token.FileSet, f *ast.File, lines []string) (found []int) {
	for _, group := range f.Comments {
		for _, c := range group.List {
			at := fset.Position(c.Pos()).Line
			width := utf8.RuneCountInString(strings.ReplaceAll(lines[at-1], "\t", "    "))
			if width > columns && prose.MatchString(lines[at-1]) {
				found = append(found, at)
			}
		}
	}
	return found
}

func TestGeneratedFilesSaySo(t *testing.T) {
	name := regexp.MustCompile(`(\.pb\.go|(^|/)zz_generated[^/]*\.go)$`)
	for _, p := range source(t).packs {
		for _, f := range p.files {
			if named := name.MatchString(f.path); named != f.generated {
				t.Errorf("%s: generated by its name: %v, by its header (\"// Code generated ... DO NOT EDIT.\"): %v", f.path, named, f.generated)
			}
		}
	}
}

// foreign are the patterns that no file may contain, by their meaning. The patterns are put
// together so that this file does not contain them either.
var foreign = map[string]*regexp.Regexp{
	"a path of a developer's machine": regexp.MustCompile(`(^|[\s"'(=:])/(wor` + `k/|home/[a-z]|Users/[A-Za-z]|root/(go|\.cache)/|tmp/bri` + `ef)`),
	"a host that serves modules or images": regexp.MustCompile(`\b(proxy\.go` + `lang\.org|registry(-1)?\.(do` + `cker\.io|k8s\.io|npmjs\.org)|do` +
		`cker\.io|gh` + `cr\.io|qu` + `ay\.io|(k8s\.)?gc` + `r\.io)\b`),
}

func TestNoForeignNames(t *testing.T) {
	s := source(t)
	for _, name := range s.files {
		if strings.HasSuffix(name, "go.mod") || strings.HasSuffix(name, "go.sum") {
			continue // paths of modules may look like hosts of images
		}
		lines, ok := s.text(t, name)
		if !ok {
			continue
		}
		for i, line := range lines {
			for _, what := range slices.Sorted(maps.Keys(foreign)) {
				if found := foreign[what].FindString(line); found != "" {
					t.Errorf("%s:%d has %s: %q", name, i+1, what, found)
				}
			}
		}
	}
}

// The linker leaves out unused methods. Where a program looks methods up by reflection, it keeps
// every exported one of every type: a third of edgecore
// (docs/dev/decisions/0071-what-the-binaries-hold.md).
func TestNoMethodsByReflection(t *testing.T) {
	for _, p := range source(t).packs {
		for _, bad := range reflects(p) {
			t.Error(bad)
		}
	}
}

// reflects tells where a package looks up methods by reflection. Without types it goes by names, in
// files that import reflect or a package of templates.
func reflects(p *sourcePack) (bad []string) {
	if !p.product() {
		return nil
	}
	for _, f := range p.files {
		if f.test || f.generated {
			continue
		}
		for _, templates := range []string{"text/template", "html/template"} {
			if slices.Contains(f.imports, templates) {
				bad = append(bad, f.path+" imports "+templates+", which looks up methods by reflection")
			}
		}
		if !slices.Contains(f.imports, "reflect") {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Method", "MethodByName", "Methods"}, s.Sel.Name) {
				bad = append(bad, f.path+" looks up methods by reflection: "+s.Sel.Name)
			}
			return true
		})
	}
	return bad
}
