package arch_test

import (
	"bytes"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/skerry-io/skerry"

// tree is the repository as it is on disk: tracked files, and new ones that are not ignored.
type tree struct {
	root  string
	files []string       // slashed, relative to root
	packs []*sourcePack  // packages, in order of their directories
	fset  *token.FileSet // of every syntax tree in packs
}

// sourcePack is a directory with Go files.
type sourcePack struct {
	dir   string // relative to the root; "" for the root itself
	name  string
	files []*sourceFile
}

type sourceFile struct {
	path      string
	test      bool
	generated bool
	built     bool // for this system
	lines     int
	wide      []int // lines with comments that are too wide
	syntax    *ast.File
	imports   []string
}

var load = sync.OnceValues(func() (*tree, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return nil, err
	}
	// The tests may run as root in another user's clone, which git refuses without this.
	list, err := exec.Command("git", "-c", "safe.directory=*", "-C", root, "ls-files", "-z", "-co", "--exclude-standard").Output()
	if err != nil {
		return nil, err
	}
	t := &tree{root: root, fset: token.NewFileSet()}
	packs := map[string]*sourcePack{}
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		b, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not yet committed
		}
		if err != nil {
			return nil, err
		}
		t.files = append(t.files, name)
		if !strings.HasSuffix(name, ".go") || strings.Contains("/"+name, "/testdata/") {
			continue
		}
		f, err := parse(t.fset, name, b)
		if err != nil {
			return nil, err
		}
		if f.built, err = build.Default.MatchFile(filepath.Join(root, path.Dir(name)), path.Base(name)); err != nil {
			return nil, err
		}
		dir := path.Dir(name)
		if packs[dir] == nil {
			packs[dir] = &sourcePack{dir: dir}
			t.packs = append(t.packs, packs[dir])
		}
		packs[dir].files = append(packs[dir].files, f)
		if !f.test {
			packs[dir].name = f.syntax.Name.Name
		}
	}
	slices.SortFunc(t.packs, func(a, b *sourcePack) int { return strings.Compare(a.dir, b.dir) })
	return t, nil
})

func parse(fset *token.FileSet, name string, b []byte) (*sourceFile, error) {
	syntax, err := parser.ParseFile(fset, name, b, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := &sourceFile{path: name, test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(syntax), lines: bytes.Count(b, []byte("\n")), syntax: syntax}
	f.wide = wide(fset, syntax, strings.Split(string(b), "\n"))
	for _, i := range syntax.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return nil, err
		}
		f.imports = append(f.imports, p)
	}
	return f, nil
}

func source(t *testing.T) *tree {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git to list the files with")
	}
	s, err := load()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// product is the code that ships: not tests, not the tools that build.
func (p *sourcePack) product() bool { return !within(p.dir, "tests") && !within(p.dir, "build") }

// within reports whether dir is parent or below it.
func within(dir, parent string) bool { return dir == parent || strings.HasPrefix(dir, parent+"/") }

// text reads a file; ok is false where it is no text.
func (t *tree) text(tb testing.TB, name string) (lines []string, ok bool) {
	b, err := os.ReadFile(filepath.Join(t.root, name))
	if err != nil {
		tb.Fatal(err)
	}
	if bytes.IndexByte(b, 0) >= 0 {
		return nil, false
	}
	return strings.Split(string(b), "\n"), true
}
