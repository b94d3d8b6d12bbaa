package doccalls

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// A Text is one that a program shows: a string of its source, or a line of the alerts.
type Text struct {
	Place string // file:line
	Text  string
}

// Texts are those of the programs' source and of the alerts: errors, remedies, help.
func Texts(root string) (all []Text, err error) {
	for _, dir := range []string{"edge", "cloud", "common", "manifests/monitoring", "manifests/support"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			place, err := filepath.Rel(root, path)
			if err != nil {
				return err //nolint:wrapcheck // both are below root
			}
			switch {
			case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
				texts, err := literals(path, place)
				all = append(all, texts...)
				return err
			case strings.HasSuffix(path, ".yaml"):
				raw, err := os.ReadFile(path)
				for i, line := range strings.Split(string(raw), "\n") {
					all = append(all, Text{fmt.Sprintf("%s:%d", place, i+1), line})
				}
				return err //nolint:wrapcheck // it names the file
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("reading the texts of %s: %w", dir, err)
		}
	}
	return all, nil
}

// literals are the strings of a file of source; those that are added are one.
func literals(path, place string) (all []Text, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parsing: %w", err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		if !ok {
			return true
		}
		text, ok := constant(e)
		if ok {
			all = append(all, Text{fmt.Sprintf("%s:%d", place, set.Position(n.Pos()).Line), text})
		}
		return !ok
	})
	return all, nil
}

// constant is the text of a literal, or of literals with a +.
func constant(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.BinaryExpr:
		x, xok := constant(e.X)
		y, yok := constant(e.Y)
		return x + y, xok && yok && e.Op == token.ADD
	}
	return "", false
}

var (
	// end is where a command in a sentence ends at the latest.
	end = regexp.MustCompile("[`';,()\"\\n|>]|\\. |\\.$| (then|or|and|which|while|to|on|with|prints|shows|lists) ")
	// afterName is what stands between a program's name and its command.
	afterName = regexp.MustCompile(`^ ([a-z][a-z-]*)`)
)

// CheckTexts reports each command of a program, in errors, remedies and alerts, that the program
// does not have, and each flag. Elsewhere than in quotes, after "run", "then" or a colon, the
// program's name may be a noun. The words of prose are those that follow a noun after a colon.
func CheckTexts(t *testing.T, command *cobra.Command, program string, least int, prose ...string) {
	t.Helper()
	texts, err := Texts(filepath.Join("..", "..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, text := range texts {
		n, err := namedIn(command, program, text.Text, prose)
		if err != nil {
			t.Errorf("%s: %v", text.Place, err)
		}
		named += n
	}
	if named < least {
		t.Errorf("%d texts name commands of %s, at least %d do", named, program, least)
	}
}

// namedIn counts the commands of a program in a text.
func namedIn(command *cobra.Command, program, text string, prose []string) (n int, err error) {
	name := regexp.MustCompile(`(^|[^\w./-])` + program + ` `)
	imperative := regexp.MustCompile("([`']|[Rr]un |then |: )$")
	for _, at := range name.FindAllStringIndex(text, -1) {
		rest := text[at[1]-1:]
		m := afterName.FindStringSubmatch(rest)
		if m == nil {
			continue
		}
		if stop := end.FindStringIndex(rest); stop != nil {
			rest = rest[:stop[0]]
		}
		c, words := command, strings.Fields(rest)
		for len(words) > 0 {
			i := slices.IndexFunc(c.Commands(), func(sub *cobra.Command) bool { return sub.Name() == words[0] || sub.HasAlias(words[0]) })
			if i < 0 {
				break
			}
			c, words = c.Commands()[i], words[1:]
		}
		if c == command {
			if imperative.MatchString(text[:at[1]-len(program)-1]) && !slices.Contains(prose, m[1]) {
				err = errors.Join(err, fmt.Errorf("%s has no command %q, in %q", program, m[1], text))
			}
			continue
		}
		n++
		for _, w := range words {
			flag, _, _ := strings.Cut(w, "=")
			if long, ok := strings.CutPrefix(flag, "--"); ok && long != "" && !c.DisableFlagParsing && c.Flag(long) == nil {
				err = errors.Join(err, fmt.Errorf("%s has no flag %s, in %q", c.CommandPath(), flag, text))
			}
		}
	}
	return n, err
}
