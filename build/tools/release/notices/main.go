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
	if err := section(out, "the Go standard library", root); err != nil {
		return err
	}
	cache, err := goEnv("GOMODCACHE")
	if err != nil {
		return err
	}
	var missing error
	for _, m := range modules {
		missing = errors.Join(missing, section(out, m, licence.Dir(cache, m)))
	}
	return missing
}

// section writes the files of a module that must travel with it.
func section(out io.Writer, name, dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	fmt.Fprintf(out, "%s\n%s\n", strings.Repeat("=", 80), name)
	found := false
	for _, f := range files {
		if f.IsDir() || !licence.Legal.MatchString(f.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			return fmt.Errorf("reading a licence of %s: %w", name, err)
		}
		found = true
		fmt.Fprintf(out, "%s %s\n%s\n", strings.Repeat("-", 40), f.Name(), bytes.TrimRight(text, "\n"))
	}
	if !found {
		return fmt.Errorf("%s has no licence file", name)
	}
	return nil
}

func goEnv(name string) (string, error) {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return "", fmt.Errorf("go env %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}
