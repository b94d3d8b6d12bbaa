// Command notices prints the licences and notices of everything that Go programs contain: the
// modules that their linkers recorded (debug/buildinfo), and Go itself. The same programs give the
// same bytes. A module without a licence file is an error: it must not be shipped.
package main

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/skerry-io/skerry/build/tools/release/licence"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: notices PROGRAM...")
		os.Exit(2)
	}
	var out bytes.Buffer
	if err := write(&out, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
	if _, err := out.WriteTo(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "notices: writing:", err)
		os.Exit(1)
	}
}

func write(out io.Writer, programs []string) error {
	var modules []string
	for _, p := range programs {
		info, err := buildinfo.ReadFile(p)
		if err != nil {
			return fmt.Errorf("reading what the linker recorded in %s: %w", p, err)
		}
		for _, m := range info.Deps {
			for m.Replace != nil {
				m = m.Replace
			}
			if m.Version != "" { // otherwise it is a folder of this repository
				modules = append(modules, m.Path+"@"+m.Version)
			}
		}
	}
	slices.Sort(modules)
	modules = slices.Compact(modules)
	root, err := goEnv("GOROOT")
	if err != nil {
		return err
	}
	if err := section(out, "the Go standard library", root, false); err != nil {
		return err
	}
	cache, err := goEnv("GOMODCACHE")
	if err != nil {
		return err
	}
	var missing error
	for _, m := range modules {
		missing = errors.Join(missing, section(out, m, licence.Dir(cache, m), true))
	}
	return missing
}

// section writes the files of a module that must travel with it, with those of the code that it
// copied from other authors if copies is set. A program holds no such code of the standard library:
// what is there is Go's own, or needs cgo.
func section(out io.Writer, name, dir string, copies bool) error {
	fmt.Fprintf(out, "%s\n%s\n", strings.Repeat("=", 80), name)
	files, err := legalFiles(dir, copies)
	if err != nil {
		return fmt.Errorf("reading the licences of %s: %w", name, err)
	}
	found := false
	printed := map[string]bool{} // many copies of one licence are one notice
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(dir, f))
		if err != nil {
			return fmt.Errorf("reading a licence of %s: %w", name, err)
		}
		found = found || !strings.Contains(f, "/")
		if text = bytes.TrimSpace(text); !printed[string(text)] {
			printed[string(text)] = true
			fmt.Fprintf(out, "%s %s\n%s\n", strings.Repeat("-", 40), f, text)
		}
	}
	if !found {
		return fmt.Errorf("%s has no licence file", name)
	}
	return nil
}

// legalFiles returns the files at the top of a module, then, if copies is set, those of code that
// it copied from other authors (third_party): with Go files that a program may contain.
func legalFiles(dir string, copies bool) (files []string, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && (!copies || d.Name() == "testdata" || d.Name() == "vendor" || strings.HasPrefix(d.Name(), "_")):
			return filepath.SkipDir
		case d.IsDir() || !licence.Legal.MatchString(d.Name()) || strings.HasSuffix(d.Name(), ".go"):
			return nil
		}
		if path := filepath.Dir(path); path != dir {
			if code, err := hasCode(path); err != nil || !code {
				return err
			}
		}
		files = append(files, name)
		return nil
	})
	slices.SortStableFunc(files, func(a, b string) int { return strings.Count(a, "/") - strings.Count(b, "/") })
	return files, err
}

// hasCode reports whether there is Go in dir or below it, apart from tests.
func hasCode(dir string) (found bool, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			found = true
			return filepath.SkipAll
		}
		return nil
	})
	return found, err
}

func goEnv(name string) (string, error) {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return "", fmt.Errorf("go env %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}
