package join

import (
	"errors"
	"fmt"
	"testing"
)

// The port of an older cloudcore is tried, and not named: a person would open it.
func TestEach(t *testing.T) {
	unreachable := func(port string) error { return fmt.Errorf("%w: port %s", ErrUnreachable, port) }
	wrong := errors.New("wrong CA")
	for name, test := range map[string]struct {
		errs map[string]error
		want error
	}{
		"neither":            {map[string]error{"443": unreachable("443"), "10002": unreachable("10002")}, unreachable("443")},
		"the second":         {map[string]error{"443": unreachable("443")}, nil},
		"the first":          {map[string]error{"10002": wrong}, nil},
		"the first is wrong": {map[string]error{"443": wrong}, wrong},
	} {
		if got := each([]string{"443", "10002"}, func(port string) error { return test.errs[port] }); fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
