package fence_test

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/cloud/internal/core/fence"
)

// A copy of a device's identity is told from the device itself, from one whose certificate was
// renewed, and from one that was joined again on other hardware.
func TestOperate_14_ACloneIsTold(t *testing.T) {
	day := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	machine := func(id, key string, issued time.Time) fence.Machine {
		return fence.MachineOf(id, &x509.Certificate{RawSubjectPublicKeyInfo: []byte(key), NotBefore: issued})
	}
	have := machine("aa01", "k1", day)
	now := day.AddDate(0, 0, 200)
	for name, tc := range map[string]struct {
		have, ours fence.Machine
		clone      bool
	}{
		"the device itself":                       {have, have, false},
		"the first session":                       {fence.Machine{}, have, false},
		"hardware that has no name":               {have, machine("", "k1", day), false},
		"hardware whose name is no digest":        {have, machine("bb02\n", "k1", day), false},
		"hardware whose name is endless":          {have, machine(strings.Repeat("b", 1000), "k1", day), false},
		"renewed with another key":                {have, machine("aa01", "k2", day.AddDate(0, 0, 200)), false},
		"a copied disk":                           {have, machine("bb02", "k1", day), true},
		"a copy whose device has renewed":         {machine("aa01", "k2", day.AddDate(0, 0, 200)), machine("bb02", "k1", day), true},
		"a copy with the same key, renewed":       {have, machine("bb02", "k1", day.AddDate(0, 0, 200)), true},
		"joined again on other hardware":          {have, machine("bb02", "k3", day.AddDate(0, 0, 1)), false},
		"a claim of the day after tomorrow":       {machine("bb02", "k3", day.AddDate(0, 0, 202)), have, false},
		"the old hardware after that, once more ": {machine("bb02", "k3", day.AddDate(0, 0, 1)), have, true},
	} {
		t.Run(name, func(t *testing.T) {
			// As the Lease has it.
			kept := fence.MachineIn(map[string]string{fence.MachineAnnotation: tc.have.Annotation()})
			if kept != tc.have {
				t.Fatalf("kept as %+v, want %+v", kept, tc.have)
			}
			err := fence.SameMachine(now, kept, tc.ours)
			if (err != nil) != tc.clone {
				t.Fatalf("%v, want a clone: %v", err, tc.clone)
			}
			if err != nil && (!strings.Contains(err.Error(), tc.have.ID) || !strings.Contains(err.Error(), tc.ours.ID) || len(err.Error()) > 123) {
				t.Errorf("it does not name both: %v", err)
			}
		})
	}
	for _, bad := range []string{"", "x", "a b c", "a b 1 2"} {
		if m := fence.MachineIn(map[string]string{fence.MachineAnnotation: bad}); m != (fence.Machine{}) {
			t.Errorf("%q is %+v", bad, m)
		}
	}
}
