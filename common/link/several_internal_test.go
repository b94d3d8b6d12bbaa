package link

import (
	"errors"
	"fmt"
	"net"
	"testing"
)

func TestSeveral(t *testing.T) {
	refused := errors.New("refused")
	name := func(port int) error {
		return fmt.Errorf("dial port %d: %w", port, &net.DNSError{Err: "no such host", Name: "cloud.example.com"})
	}
	for want, errs := range map[string][]error{
		"timed out; refused": {errors.New("timed out"), refused},
		"refused":            {refused, refused},
		"dial port 443: lookup cloud.example.com: no such host":          {name(443), name(10000)},
		"dial port 443: lookup cloud.example.com: no such host; refused": {name(443), refused},
	} {
		if got := several(errs...); got.Error() != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if !errors.Is(fmt.Errorf("dialling: %w", several(errors.New("timed out"), refused)), refused) {
		t.Error("what failed can't be found")
	}
}
