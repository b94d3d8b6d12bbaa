package edgehub_test

import (
	"crypto/x509"
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/edgehub"
)

// trust is a edgehub.Trust in memory.
type trust struct {
	mu   sync.Mutex
	ca   string
	fail error
}

func (k *trust) TrustSum() []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	return []byte("sum of " + k.ca)
}

func (k *trust) Renew(teller *x509.Certificate, ca, clientCA []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fail != nil || teller == nil || string(clientCA) != "clients" {
		return errors.Join(k.fail, errors.New("not taken"))
	}
	k.ca = string(ca)
	return nil
}

// Each hello has the device's trust, and the trust in the welcome is adopted; a session opens even
// if that fails.
func TestHub_TakesOverWhomToTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &trust{ca: "old"}
		b := newBench(t, func(c *edgehub.Config) { c.Trust = k })
		for _, round := range []struct {
			said string
			tell *topicpb.Trust
			fail error
		}{
			{said: "sum of old", tell: &topicpb.Trust{Ca: []byte("old and new"), ClientCa: []byte("clients")}},
			{said: "sum of old and new"},
			{said: "sum of old and new", tell: &topicpb.Trust{Ca: []byte("new"), ClientCa: []byte("clients")}, fail: errors.New("no room")},
			{said: "sum of old and new"},
		} {
			k.mu.Lock()
			k.fail = round.fail
			k.mu.Unlock()
			c := b.cloud()
			m := c.receive()
			hello, err := topic.Hello.Content(m)
			if err != nil || string(hello.GetTrust()) != round.said {
				t.Errorf("hello says %q, %v; want %q", hello.GetTrust(), err, round.said)
			}
			c.send(m.Answer(&topicpb.Welcome{Protocol: topic.Protocol, Trust: round.tell}))
			b.up()
			c.close(4000, "the next round")
			b.down()
		}
	})
}
