package join

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/common/pki"
)

// TestServingIsKept: a certificate is made once and not for each handshake, however long the CA is
// good for.
func TestServingIsKept(t *testing.T) {
	const day = 24 * time.Hour
	for name, test := range map[string]struct {
		ca, later time.Duration
		renewed   bool
	}{
		"a CA of many years, soon":                     {caLifetime, 59 * day, false},
		"a CA of many years, when a third is left":     {caLifetime, 61 * day, true},
		"a CA of a month, soon":                        {30 * day, time.Hour, false},
		"a CA of a month, shortly before both end":     {30 * day, 30*day - time.Minute, false},
		"a CA that ends while the certificate is good": {80 * day, 61 * day, false},
		"a CA that ends just after the certificate":    {90*day + time.Hour, 61 * day, true},
		"a CA that has ended":                          {day, 2 * day, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, err := pki.NewAuthority("test", time.Now().Add(-caBackdate), time.Now().Add(test.ca))
				if err != nil {
					t.Fatal(err)
				}
				s, err := (&CA{Authority: a}).Serving([]string{"cloud.example.com"})
				if err != nil {
					t.Fatal(err)
				}
				first, err := s.Certificate()
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(test.later)
				second, err := s.Certificate()
				if err != nil {
					t.Fatal(err)
				}
				if renewed := first != second; renewed != test.renewed {
					t.Errorf("made anew after %v: %v, want %v", test.later, renewed, test.renewed)
				}
			})
		})
	}
}
