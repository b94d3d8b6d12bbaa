package arch_test

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"math"
	"math/bits"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// cyclic are the packages whose files still refer to each other in circles, each with the least
// number of arrows that would have to go. A number only goes down; a package without a line has no
// circles. Lines have a gap between them so that changes of two neighbours merge without a
// conflict.
var cyclic = map[string]int{
	"cloud/internal/access/tunnel": 3,

	"cloud/internal/access/aggregated/usage": 1,

	"common/link": 2,

	"common/link/internal/deadline": 1,

	"common/tunnel": 2,

	"edge/cmd/edgecore": 2,

	"edge/internal/agents/drain": 2,

	"edge/internal/pods/edged": 2,

	"edge/internal/setup/join": 3,

	"edge/internal/core/table": 2,

	"tests/cluster/trial": 1,

	"tests/cmd/trial": 2,

	"tests/hollow": 1,

	"tests/kubeplane": 1,
}

// large are the packages above largest lines, each with its number of today, rounded up to the next
// hundred. A number only goes down. A package that is large for good gives the reason in its
// package comment, in a sentence that begins with largeBecause, and needs no line here.
var large = map[string]int{}

const (
	largest      = 2500
	largeBecause = "It is above 2,500 lines because"
)

// References between the files of a package go one way: types and helpers at the bottom, the module
// at the top. A reader can then stop at any file and has seen all that it depends on.
func TestFilesReferOneWay(t *testing.T) {
	s := source(t)
	check := newChecker(s)
	for _, p := range s.packs {
		if p.name == "" {
			continue
		}
		all := check.arrows(p)
		circles := all.circles()
		found := 0
		for _, c := range circles {
			found += c.up()
		}
		switch allowed := cyclic[p.dir]; {
		case found > allowed:
			t.Errorf("%s: %d arrows between files run up, %d are allowed. Move what the lower files use "+
				"down into them, or into a file below:\n%s", p.dir, found, allowed, describe(circles))
		case found < allowed:
			t.Errorf("%s: only %d arrows run up now: lower its line in tests/arch/arrows_test.go from %d", p.dir, found, allowed)
		}
	}
	for dir := range cyclic {
		if !slices.ContainsFunc(s.packs, func(p *sourcePack) bool { return p.dir == dir && p.name != "" }) {
			t.Errorf("%s is gone: remove its line in tests/arch/arrows_test.go", dir)
		}
	}
}

func TestPackagesStaySmall(t *testing.T) {
	for _, p := range source(t).packs {
		lines, why := p.size()
		switch allowed, listed := large[p.dir]; {
		case listed && (lines <= largest || why):
			t.Errorf("%s needs no line in the table of large packages any more: remove it", p.dir)
		case listed && lines > allowed:
			t.Errorf("%s has grown from %d to %d lines", p.dir, allowed, lines)
		case listed && lines <= allowed-100:
			t.Errorf("%s has %d lines now: lower its line in tests/arch/arrows_test.go from %d", p.dir, lines, allowed)
		case !listed && lines > largest && !why:
			t.Errorf("%s has %d lines: cut it, or say in the package comment %q ...", p.dir, lines, largeBecause)
		}
	}
}

// The product's hand-written lines and packages (docs/dev/structure.md). The limits have some room
// for work that is under way; a feature that needs more raises them in its commit.
const (
	mostLines    = 128_000
	mostPackages = 185
)

func TestProductStaysSmall(t *testing.T) {
	lines, packages := 0, 0
	for _, p := range source(t).packs {
		if !p.product() {
			continue
		}
		if n, _ := p.size(); n > 0 {
			lines += n
			packages++
		}
	}
	t.Logf("%d lines in %d packages", lines, packages)
	if lines > mostLines || packages > mostPackages {
		t.Errorf("the product has %d lines in %d packages, more than %d in %d: delete and merge, or raise the limits", lines, packages, mostLines, mostPackages)
	}
	if lines < mostLines*9/10 || packages < mostPackages*9/10 {
		t.Errorf("the product has %d lines in %d packages: lower the limits from %d and %d", lines, packages, mostLines, mostPackages)
	}
}

// size counts the hand-written lines of the product, and reports whether the package comment
// explains why they are so many.
func (p *sourcePack) size() (lines int, why bool) {
	for _, f := range p.files {
		if f.test || f.generated {
			continue
		}
		lines += f.lines
		why = why || f.syntax.Doc != nil && strings.Contains(strings.Join(strings.Fields(f.syntax.Doc.Text()), " "), largeBecause)
	}
	return lines, why
}

// arrows are the references between the files of a package: arrows[a][b] are the names that a
// uses and b declares.
type arrows map[string]map[string][]string

func (a arrows) add(from, to, name string) {
	if a[from] == nil {
		a[from] = map[string][]string{}
	}
	if !slices.Contains(a[from][to], name) {
		a[from][to] = append(a[from][to], name)
	}
}

// circles are the arrows that lie on a circle, one set for each strongly connected component
// (R. Tarjan, "Depth-first search and linear graph algorithms", 1972).
func (a arrows) circles() (all []arrows) {
	index, low, on := map[string]int{}, map[string]int{}, map[string]bool{}
	var stack []string
	var visit func(string)
	visit = func(f string) {
		index[f] = len(index) + 1
		low[f] = index[f]
		stack, on[f] = append(stack, f), true
		for _, to := range slices.Sorted(maps.Keys(a[f])) {
			if index[to] == 0 {
				visit(to)
				low[f] = min(low[f], low[to])
			} else if on[to] {
				low[f] = min(low[f], index[to])
			}
		}
		if low[f] != index[f] {
			return
		}
		at := slices.Index(stack, f)
		members := slices.Clone(stack[at:])
		stack = stack[:at]
		for _, m := range members {
			on[m] = false
		}
		if len(members) > 1 {
			all = append(all, a.within(members))
		}
	}
	for _, f := range slices.Sorted(maps.Keys(a)) {
		if index[f] == 0 {
			visit(f)
		}
	}
	return all
}

func (a arrows) within(files []string) arrows {
	part := arrows{}
	for _, from := range files {
		for to, names := range a[from] {
			if slices.Contains(files, to) {
				for _, n := range names {
					part.add(from, to, n)
				}
			}
		}
	}
	return part
}

// exactly bounds the circles for which the order is the best one: the search takes 2^n steps.
const exactly = 22

// order puts the files so that the fewest arrows run up, the bottom first. That is the minimum
// feedback arc set, found by dynamic programming over the sets of files that lie below (E. Lawler,
// "A comment on minimum feedback arc sets", 1964).
func (a arrows) order() (bottomFirst []string) {
	files := slices.Sorted(maps.Keys(a))
	if len(files) > exactly {
		return files // the package is to be cut in any case
	}
	users := make([]uint32, len(files)) // by file: the set of those that refer to it
	for i, f := range files {
		for j, other := range files {
			if len(a[other][f]) > 0 {
				users[i] |= 1 << j
			}
		}
	}
	cost, top := make([]uint16, 1<<len(files)), make([]uint8, 1<<len(files))
	for below := 1; below < len(cost); below++ {
		cost[below] = math.MaxUint16
		for left := uint32(below); left != 0; left &= left - 1 {
			i := bits.TrailingZeros32(left)
			rest := uint32(below) &^ (1 << i)
			if c := cost[rest] + uint16(bits.OnesCount32(users[i]&rest)); c < cost[below] {
				cost[below], top[below] = c, uint8(i)
			}
		}
	}
	for below := uint32(len(cost) - 1); below != 0; {
		i := top[below]
		bottomFirst = append(bottomFirst, files[i])
		below &^= 1 << i
	}
	slices.Reverse(bottomFirst)
	return bottomFirst
}

// up counts the arrows that run up in the best order.
func (a arrows) up() (n int) {
	order := a.order()
	for i, from := range order {
		for _, to := range order[i+1:] {
			n += min(1, len(a[from][to]))
		}
	}
	return n
}

// describe prints, for each circle, an order of its files and the arrows that run against it.
func describe(circles []arrows) string {
	var b strings.Builder
	for _, c := range circles {
		order := c.order()
		fmt.Fprintf(&b, "  from the bottom: %s\n", strings.Join(order, ", "))
		for i, from := range order {
			for _, to := range order[i+1:] {
				if names := c[from][to]; len(names) > 0 {
					slices.Sort(names)
					fmt.Fprintf(&b, "    %s -> %s: %s\n", from, to, strings.Join(names, ", "))
				}
			}
		}
	}
	return b.String()
}

// A checker resolves names. It reads the standard library and this module from their sources and
// takes every other import for an empty package: their declarations are not needed here, and
// Kubernetes need not be compiled. A reference is missed only where the type of a value comes out
// of a generic function of such a package.
type checker struct {
	build build.Context
	fset  *token.FileSet
	packs map[string]*sourcePack // by import path
	done  map[string]*types.Package
}

func newChecker(s *tree) *checker {
	c := &checker{build: standard(), fset: s.fset, packs: map[string]*sourcePack{}, done: map[string]*types.Package{"unsafe": types.Unsafe}}
	for _, p := range s.packs {
		c.packs[path.Join(module, p.dir)] = p
	}
	return c
}

// standard finds packages of the standard library. A program that is compiled with -trimpath does
// not know where they are.
var standard = sync.OnceValue(func() build.Context {
	found := build.Default
	if root, err := exec.Command("go", "env", "GOROOT").Output(); err == nil {
		found.GOROOT = strings.TrimSpace(string(root))
	}
	return found
})

// Import implements types.Importer.
func (c *checker) Import(name string) (*types.Package, error) {
	if p := c.done[name]; p != nil {
		return p, nil
	}
	var files []*ast.File
	first, _, _ := strings.Cut(name, "/")
	switch p := c.packs[name]; {
	case p != nil:
		files = p.compiled()
	case !strings.Contains(first, "."):
		found, err := c.build.Import(name, "", 0)
		if err != nil {
			return nil, err
		}
		for _, f := range found.GoFiles {
			syntax, err := parser.ParseFile(c.fset, filepath.Join(found.Dir, f), nil, parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, syntax)
		}
	}
	if len(files) == 0 {
		empty := types.NewPackage(name, path.Base(name))
		empty.MarkComplete()
		c.done[name] = empty
		return empty, nil
	}
	// Unresolved names are expected errors.
	checked, _ := c.config(true).Check(name, c.fset, files, nil)
	c.done[name] = checked
	return checked, nil
}

func (c *checker) config(declarationsOnly bool) *types.Config {
	return &types.Config{
		Importer: c, Error: func(error) {}, IgnoreFuncBodies: declarationsOnly,
		FakeImportC: true, DisableUnusedImportCheck: true,
	}
}

// arrows draws the references between the hand-written files of a package: functions, types,
// constants, variables, methods and fields.
func (c *checker) arrows(p *sourcePack) arrows {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	checked, _ := c.config(false).Check(path.Join(module, p.dir), c.fset, p.compiled(), info)
	written := map[string]bool{}
	for _, f := range p.files {
		written[f.path] = !f.test && !f.generated
	}
	all := arrows{}
	for ident, object := range info.Uses {
		if object.Pkg() != checked || !object.Pos().IsValid() {
			continue
		}
		from, to := c.fset.Position(ident.Pos()).Filename, c.fset.Position(object.Pos()).Filename
		if from != to && written[from] && written[to] {
			all.add(path.Base(from), path.Base(to), object.Name())
		}
	}
	return all
}

// compiled are the package's files for this system, without tests.
func (p *sourcePack) compiled() (files []*ast.File) {
	for _, f := range p.files {
		if !f.test && f.built {
			files = append(files, f.syntax)
		}
	}
	return files
}

// draw makes a package of some files and gives its circles.
func draw(t *testing.T, files map[string]string) []arrows {
	t.Helper()
	s := &tree{fset: token.NewFileSet()}
	p := &sourcePack{dir: "x", name: "x"}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f, err := parse(s.fset, "x/"+name, []byte("package x\n"+files[name]))
		if err != nil {
			t.Fatal(err)
		}
		f.built = true
		p.files = append(p.files, f)
	}
	s.packs = []*sourcePack{p}
	return newChecker(s).arrows(p).circles()
}

func TestArrows_findWhatTheyMust(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"one way": {map[string]string{
			"a.go": "type A struct{ n int }\nfunc (a *A) inc() { a.n++ }", "b.go": "func use(a *A) { a.inc() }",
		}, ""},
		"functions": {map[string]string{"a.go": "func a() { b() }", "b.go": "func b() { a(); more() }\nfunc more() {}", "c.go": "func c() { more() }"}, "1"},
		"a method of a type below": {map[string]string{
			"a.go": "type A struct{}\nfunc New() *A { a := &A{}; a.up(); return a }", "b.go": "func (a *A) up() {}",
		}, "1"},
		"a field": {map[string]string{"a.go": "type A struct{ b B }\nfunc f(a A) int { return a.b.n }", "b.go": "type B struct { n int; a *A }"}, "1"},
		"behind a value of another module": {map[string]string{
			"a.go": "import \"example.com/other\"\nfunc a() { other.Do(func() { var x B; x.run() }) }", "b.go": "type B int\nfunc (B) run() { a() }",
		}, "1"},
		"behind a value of the standard library": {map[string]string{
			"a.go": "import \"sync/atomic\"\ntype A struct{ b atomic.Pointer[holder] }\ntype holder struct { b interface { run() } }\nfunc (a *A) x() { a.b.Load().top() }",
			"b.go": "func (h *holder) top() {}",
		}, "1"},
		"through three":  {map[string]string{"a.go": "func a() { b() }", "b.go": "func b() { c() }", "c.go": "func c() { a() }", "d.go": "func d() { a() }"}, "1"},
		"tests are free": {map[string]string{"a.go": "func a() {}", "a_test.go": "func test() { a() }"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			for _, circle := range draw(t, c.files) {
				got += fmt.Sprint(circle.up())
			}
			if got != c.want {
				t.Errorf("arrows that run up: want %q, got %q", c.want, got)
			}
		})
	}
}

func TestArrows_areDescribed(t *testing.T) {
	got := describe(draw(t, map[string]string{
		"module.go": "type Module struct{ q queue }\nfunc (m *Module) Run() { m.q.add(); m.q.drop(); limit() }",
		"queue.go":  "type queue struct{}\nfunc (q queue) add() {}\nfunc (q queue) drop() { var m Module; m.Run() }\nfunc limit() {}",
	}))
	want := "  from the bottom: queue.go, module.go\n    queue.go -> module.go: Module, Run\n"
	if got != want {
		t.Errorf("want\n%s, got\n%s", want, got)
	}
}
