package link_test

import (
	"net"
	"testing"

	"github.com/skerry-io/skerry/common/link"
)

func TestShares(t *testing.T) {
	s := link.NewShares[string](64)
	var leave []func()
	take := func(source string) (n int) {
		for {
			l, ok := s.Enter(source)
			if !ok {
				return n
			}
			leave = append(leave, l)
			n++
		}
	}
	if n := take("site"); n != 32 {
		t.Errorf("one source alone got %d places", n)
	}
	if a, b := take("a"), take("b"); a != 8 || b != 8 {
		t.Errorf("the next got %d and %d", a, b)
	}
	if l, ok := s.Enter("another"); ok {
		l()
	} else {
		t.Error("nothing is left for another")
	}
	for _, l := range leave {
		l()
		l()
	}
	if n := take("again"); n != 32 {
		t.Errorf("after all left: %d places", n)
	}
}

func TestSource(t *testing.T) {
	for address, want := range map[string]string{"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8::1:2": "2001:db8::/64"} {
		if got := link.Source(&net.TCPAddr{IP: net.ParseIP(address), Port: 1}).String(); got != want {
			t.Errorf("%s counts as %s, want %s", address, got, want)
		}
	}
	if link.Source(&net.UnixAddr{}).IsValid() {
		t.Error("a socket that is no IP has a prefix")
	}
}
