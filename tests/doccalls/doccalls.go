// Package doccalls finds the blocks of the documents, and the calls of programs in them.
//
// It owns how a block is marked, and how a call is found: in a block for a shell, or in a span of
// code in a table. Check reports calls that a program does not take. It refuses to run anything:
// tests/integration/docs and tests/e2e do. Its functions may be called by many goroutines.
package doccalls

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var span = regexp.MustCompile("`([^`\n]+)`")

// Check reports each call of the program, in any document, that command() would not take. least is
// how many there are at least.
func Check(t *testing.T, command func() *cobra.Command, program string, least int) {
	t.Helper()
	root := filepath.Join("..", "..", "..")
	pages, err := Pages(root)
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for _, page := range pages {
		raw, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		found, err := in(page, string(raw), program)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range found {
			calls++
			if err := try(command(), call); err != nil {
				t.Errorf("%s: %s %s: %v", page, program, strings.Join(call, " "), err)
			}
		}
	}
	if calls < least {
		t.Errorf("%d calls of %s were found: are they marked as code any more?", calls, program)
	}
}

// try is whether a program would take a call.
func try(program *cobra.Command, call []string) error {
	c, args, err := program.Find(call)
	if err != nil {
		return err //nolint:wrapcheck // for a test's output
	}
	if c == c.Root() && len(call) > 0 && !strings.HasPrefix(call[0], "-") {
		return errors.New("there is no such command")
	}
	if c.DisableFlagParsing {
		return nil
	}
	if err := c.ParseFlags(args); err != nil {
		return err //nolint:wrapcheck // for a test's output
	}
	if !c.Runnable() {
		return errors.New("it only has commands")
	}
	if len(args) > 0 { // else it may be named only
		return c.ValidateArgs(c.Flags().Args()) //nolint:wrapcheck // for a test's output
	}
	return nil
}

// in are the arguments of the calls in a page: in a block, and in a table's spans of code, where
// one with "..." is a pattern.
func in(page, text, program string) (calls [][]string, err error) {
	blocks, err := blocksOf(page, text)
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		if !b.Shell() {
			continue
		}
		for _, c := range b.Commands() {
			calls = append(calls, callsOf(c.Line, program)...)
		}
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "| ") {
			continue
		}
		for _, found := range span.FindAllStringSubmatch(line, -1) {
			if strings.HasPrefix(found[1], program+" ") && !strings.Contains(found[1], "...") {
				calls = append(calls, callsOf(found[1], program)...)
			}
		}
	}
	return calls, nil
}

// callsOf are the arguments of a program's calls in a line of shell.
func callsOf(line, program string) (calls [][]string) {
	for _, words := range commandsOf(line) {
		if rest, ours := strings.CutPrefix(strings.Join(words, "\x00")+"\x00", strings.ReplaceAll(program, " ", "\x00")+"\x00"); ours {
			calls = append(calls, strings.FieldsFunc(rest, func(r rune) bool { return r == 0 }))
		}
	}
	return calls
}

// commandsOf divides a line of shell into the words of its commands, without redirections. Quotes
// hold a word together; the commands of $(...) are further ones.
func commandsOf(line string) (commands [][]string) {
	var words []string
	var word strings.Builder
	in, quote := false, rune(0)
	endWord := func() {
		if in {
			words = append(words, word.String())
		}
		word.Reset()
		in = false
	}
	end := func() {
		endWord()
		if i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, ">") || strings.HasPrefix(w, "<") }); i >= 0 {
			words = words[:i]
		}
		if len(words) > 0 {
			commands = append(commands, words)
		}
		words = nil
	}
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, in = r, true
		case strings.ContainsRune("|;&()\n", r):
			if r == '\n' && strings.HasSuffix(word.String(), `\`) { // the line continues
				word.Reset()
				in = false
				continue
			}
			if word.String() == "$" {
				in = false
			}
			end()
		case r == ' ':
			endWord()
		default:
			in = true
			word.WriteRune(r)
		}
	}
	end()
	return commands
}
