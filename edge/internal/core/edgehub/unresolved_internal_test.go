package edgehub

import (
	"errors"
	"fmt"
	"net"
	"testing"
)

// A name server that is not there is a mistake to correct; one that does not answer may be behind a
// link that is cut.
func TestUnresolved(t *testing.T) {
	for want, errs := range map[bool][]error{
		true: {
			fmt.Errorf("dialling: %w", &net.DNSError{Name: "cloud", IsNotFound: true}),
			errors.New("dial tcp: lookup cloud on 192.0.2.1:53: no such host"),
			errors.New("timed out; dial tcp: lookup cloud on 127.0.0.1:53: read udp 127.0.0.1:9->127.0.0.1:53: read: connection refused"),
		},
		false: {
			errors.New("dial tcp: lookup cloud on 192.0.2.1:53: read udp 192.0.2.9:9->192.0.2.1:53: i/o timeout"),
			errors.New("lookup cloud on 192.0.2.1:53: i/o timeout; dial tcp 192.0.2.2:443: connect: connection refused"),
			errors.New("dial tcp 192.0.2.2:443: connect: connection refused"),
		},
	} {
		for _, err := range errs {
			if got := unresolved(err); got != want {
				t.Errorf("%v: %t", err, got)
			}
		}
	}
}
