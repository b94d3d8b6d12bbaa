// Package sensitivity switches off rules of the protocol, one at a time, in a build that is for the
// campaign alone: a campaign that can't find a deliberate violation is no evidence for the rule.
//
// It owns the list of switches. A switch is a few edits of the product's source, which `go build
// -overlay` compiles in place of the files themselves: no release contains them. One build has all
// of them, and its processes have that one off which Env names. It refuses an edit whose text is
// not in its file exactly once, so that a switch can't stop working unseen. Every function except
// Write is pure; all of it may be called by any goroutine.
package sensitivity

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Select finds switches by their names, with commas between them; all is all of them.
func Select(names string) ([]Switch, error) {
	if names == "all" {
		return All(), nil
	}
	var selected []Switch
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(All(), func(s Switch) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no switch has the name %q; there are all of them by the name of all, and\n%s", name, List())
		}
		selected = append(selected, All()[i])
	}
	return selected, nil
}

// List has a line for each switch: its name, and the rule that is off.
func List() string {
	var b strings.Builder
	for _, s := range All() {
		fmt.Fprintf(&b, "%-18s %s\n", s.Name, s.Off)
	}
	return b.String()
}

// Apply gives the changed text of each file that switches change, by its name.
func Apply(root string, switches ...Switch) (map[string]string, error) {
	changed := map[string]string{}
	for _, s := range switches {
		for _, e := range s.Edits {
			text, ok := changed[e.File]
			if !ok {
				raw, err := os.ReadFile(filepath.Join(root, e.File))
				if err != nil {
					return nil, fmt.Errorf("the switch %s: %w", s.Name, err)
				}
				text = string(raw)
			}
			if n := strings.Count(text, e.Old); n != 1 {
				return nil, fmt.Errorf("the switch %s is for a text that %s has %d times, and not once:\n%s", s.Name, e.File, n, e.Old)
			}
			changed[e.File] = strings.Replace(text, e.Old, e.New, 1)
		}
	}
	return changed, nil
}

// variable names the switch that is off, in a build with the overlay.
const variable = "SKERRY_CAMPAIGN_WITHOUT"

// Env is the environment of a process in which the switch is off.
func (s Switch) Env() []string { return []string{variable + "=" + s.Name} }

// helper is added to each package that is changed.
const helper = `package %s

import "os"

// off reports whether a switch is off in this process.
func off(name string) bool { return os.Getenv(%q) == name }
`

// Write puts the changed files into dir and returns the file for `go build -overlay`.
func Write(root, dir string, switches ...Switch) (overlay string, err error) {
	changed, err := Apply(root, switches...)
	if err != nil {
		return "", err
	}
	for file := range maps.Clone(changed) {
		at := filepath.Dir(file)
		changed[filepath.Join(at, "off_in_a_campaign.go")] = fmt.Sprintf(helper, filepath.Base(at), variable)
	}
	replace := map[string]string{}
	for file, text := range changed {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(to, []byte(text), 0o600); err != nil {
			return "", fmt.Errorf("writing a changed file: %w", err)
		}
		replace[filepath.Join(root, file)] = to
	}
	raw, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("writing the overlay: %w", err)
	}
	overlay = filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, raw, 0o600); err != nil {
		return "", fmt.Errorf("writing the overlay: %w", err)
	}
	return overlay, nil
}
