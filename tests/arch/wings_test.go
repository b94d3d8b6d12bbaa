package arch_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// wings are the folders below edge/internal and cloud/internal, lowest first. A wing imports only
// wings of a lower level (docs/dev/ARCHITECTURE.md, code map). The drivers of the kernel are
// three wings below one folder, whose names have two elements.
var wings = map[string][][]string{
	"edge/internal":  {{"kernel/host"}, {"kernel/network"}, {"kernel/netfilter"}, {"core"}, {"agents"}, {"site"}, {"pods", "optional", "setup"}},
	"cloud/internal": {{"core"}, {"controllers", "access", "trust"}},
}

// maxPackages bounds the packages of a wing; those below another package count with it.
const maxPackages = 12

// wing finds the wing of a directory and its package there.
func wing(dir string) (side, name, pack string, ok bool) {
	for side := range wings {
		if rest, in := strings.CutPrefix(dir, side+"/"); in {
			name, rest, _ := strings.Cut(rest, "/")
			if name == "kernel" {
				sub, below, _ := strings.Cut(rest, "/")
				name, rest = name+"/"+sub, below
			}
			pack, _, _ := strings.Cut(rest, "/")
			return side, name, pack, true
		}
	}
	return "", "", "", false
}

// wingLevel is the position of a wing among those of its side, -1 if it is unknown.
func wingLevel(side, name string) int {
	return slices.IndexFunc(wings[side], func(level []string) bool { return slices.Contains(level, name) })
}

// wingComplaints returns the imports of one package that break the order of wings.
func wingComplaints(dir string, imports []string) (complaints []string) {
	side, name, pack, ok := wing(dir)
	if !ok {
		return nil
	}
	level := wingLevel(side, name)
	if level < 0 {
		return []string{fmt.Sprintf("%s: %s has no wing %q", dir, side, name)}
	}
	if pack == "" {
		return []string{dir + ": a wing has packages, and is none"}
	}
	for _, i := range imports {
		s, n, _, ok := wing(i)
		if ok && s == side && n != name && wingLevel(s, n) >= level {
			complaints = append(complaints, fmt.Sprintf("%s imports %s: the wing %s is not below %s", dir, i, n, name))
		}
	}
	return complaints
}

func TestWings(t *testing.T) {
	packages := map[string]map[string]bool{}
	for _, p := range source(t).packs {
		side, name, pack, ok := wing(p.dir)
		if !ok || !p.product() {
			continue
		}
		key := side + "/" + name
		if packages[key] == nil {
			packages[key] = map[string]bool{}
		}
		packages[key][pack] = true
		for _, f := range p.files {
			if f.test {
				continue
			}
			var ours []string
			for _, i := range f.imports {
				if dir, in := strings.CutPrefix(i, module+"/"); in {
					ours = append(ours, dir)
				}
			}
			for _, c := range wingComplaints(p.dir, ours) {
				t.Error(c)
			}
		}
	}
	for key, r := range packages {
		if len(r) > maxPackages {
			t.Errorf("%s has %d packages, at most %d: merge some, or found a wing", key, len(r), maxPackages)
		}
	}
}

func TestWings_Complaints(t *testing.T) {
	for name, c := range map[string]struct {
		dir     string
		imports []string
		want    int
	}{
		"downwards":             {"edge/internal/site/names", []string{"edge/internal/core/agent", "edge/internal/kernel/network/lan"}, 0},
		"upwards":               {"edge/internal/core/agent", []string{"edge/internal/site/names"}, 1},
		"to a peer":             {"cloud/internal/access/tunnel", []string{"cloud/internal/trust/join"}, 1},
		"within the wing":       {"cloud/internal/access/tunnel", []string{"cloud/internal/access/clienthello"}, 0},
		"to a higher wing":      {"edge/internal/kernel/network/netif", []string{"edge/internal/kernel/netfilter/ipvs"}, 1},
		"to a lower wing":       {"edge/internal/kernel/netfilter/ipvs", []string{"edge/internal/kernel/network/dump"}, 0},
		"no wing of the kernel": {"edge/internal/kernel/driver", nil, 1},
		"no wing":               {"edge/internal/tools/x", nil, 1},
		"no package":            {"edge/internal/core", nil, 1},
		"elsewhere":             {"common/link", []string{"edge/internal/core/agent"}, 0},
	} {
		if got := wingComplaints(c.dir, c.imports); len(got) != c.want {
			t.Errorf("%s: %q, want %d", name, got, c.want)
		}
	}
}
