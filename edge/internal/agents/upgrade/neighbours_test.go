package upgrade_test

import (
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/core/artefact"
)

// neighbours are the devices of a site, by name, with what each sends as the program.
type neighbours struct {
	all   map[string]string
	asked []string
}

func (n *neighbours) Open(_ context.Context, _ artefact.Target, offset int64, skip map[string]bool) (io.ReadCloser, string, error) {
	for _, node := range slices.Sorted(maps.Keys(n.all)) {
		if !skip[node] {
			n.asked = append(n.asked, node)
			return io.NopCloser(strings.NewReader(n.all[node][offset:])), node, nil
		}
	}
	return nil, "", artefact.ErrNoNeighbour
}

// A device takes a program from its site before it takes a delta over the link; from the link where
// no device has it, or all that do send other bytes. An operator's bundle is not looked for
// elsewhere.
func TestFleet_26_NeighboursComeFirst(t *testing.T) {
	const program = "the next program"
	for name, c := range map[string]struct {
		site     *neighbours
		bundle   bool
		asked    []string
		fromSite bool
	}{
		"a device has it":            {&neighbours{all: map[string]string{"a": program}}, false, []string{"a"}, true},
		"no device has it":           {&neighbours{}, false, nil, false},
		"there is no site":           {nil, false, nil, false},
		"wrong bytes, then right":    {&neighbours{all: map[string]string{"a": "another program!", "b": program}}, false, []string{"a", "b"}, true},
		"wrong bytes alone":          {&neighbours{all: map[string]string{"a": "another program!"}}, false, []string{"a"}, false},
		"an operator brought a file": {&neighbours{all: map[string]string{"a": program}}, true, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSystem(t)
				s.self = filepath.Join(s.dir, "package")
				s.check(os.WriteFile(s.self, []byte("the running program"), 0o755))
				s.add("v1.4.0", program, nil)
				if c.site != nil {
					s.neighbours = c.site
				}
				o := operation(upgradeTo("v1.4.0"))
				if c.bundle {
					o = fromBundle(o.Spec)
				}
				work, restarts := s.do(o)
				if !restarts || work.Upgrade == nil || work.Upgrade.FromSite != c.fromSite || work.Upgrade.Fetched != work.Upgrade.Size {
					t.Fatalf("restarts %v, %+v, %+v", restarts, work, work.Upgrade)
				}
				if c.site != nil && !slices.Equal(c.site.asked, c.asked) {
					t.Errorf("asked %v", c.site.asked)
				}
				if work, _ = s.do(o); work.Reason != v1alpha1.OperationConfirmed || work.Upgrade.FromSite != c.fromSite {
					t.Errorf("it ended with %+v, %+v", work, work.Upgrade)
				}
				state, err := s.directory.Load()
				s.check(err)
				if raw, err := os.ReadFile(s.directory.Program(state.Confirmed.Slot)); err != nil || string(raw) != program {
					t.Errorf("the program is %q, %v", raw, err)
				}
				for _, pattern := range []string{"bin/*.copy", "artefacts/*.copy", "artefacts/*.part"} {
					if left, _ := filepath.Glob(filepath.Join(s.dir, pattern)); len(left) > 0 {
						t.Errorf("left on the disk: %v", left)
					}
				}
			})
		})
	}
}
