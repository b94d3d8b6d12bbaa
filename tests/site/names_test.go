package site_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/miekg/dns"
)

// nameServer is where devices answer names.
const nameServer = "169.254.20.20:53"

// query asks a device for a name, from the device itself.
func (s *system) query(ctx context.Context, node, name string, qtype uint16) (*dns.Msg, error) {
	h, err := s.Trial.Host(node)
	if err != nil {
		return nil, err
	}
	conn, err := h.Dial(ctx, "udp", nameServer)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	m := new(dns.Msg).SetQuestion(name, qtype)
	m.SetEdns0(1232, false)
	r, _, err := (&dns.Client{Timeout: 5 * time.Second}).ExchangeWithConnContext(ctx, m, &dns.Conn{Conn: conn, UDPSize: 1232})
	return r, err
}

// lookUp compares the addresses of a name.
func (s *system) lookUp(ctx context.Context, node, name string, want []string) error {
	r, err := s.query(ctx, node, name, dns.TypeA)
	if err != nil {
		return err
	}
	var got []string
	for _, rr := range r.Answer {
		if a, ok := rr.(*dns.A); ok {
			if ip, ok := netip.AddrFromSlice(a.A.To4()); ok {
				got = append(got, ip.String())
			}
		}
	}
	want = slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		return fmt.Errorf("%s is %v (%s), want %v", name, got, dns.RcodeToString[r.Rcode], want)
	}
	return nil
}
