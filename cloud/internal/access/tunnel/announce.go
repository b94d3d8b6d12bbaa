package tunnel

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// announceLife is how old an announcement may be: a replica that lives renews a node's Lease, and
// its announcement in it, every 20 s or so. Clocks of replicas may differ by the rest.
const announceLife = 90 * time.Second

// An Announcer writes where this replica is asked for streams, for the Lease of a node whose link
// it holds. A node may write its Lease too: so the announcement is signed, by a key that all
// replicas derive from their CA, for this node, this replica and this moment. A node can't make
// cloudcore dial an address of its choice, nor one at which a replica no longer lives.
type Announcer struct {
	// Set by NewAnnouncer, never changed.
	key               [32]byte
	instance, address string
}

// NewAnnouncer announces a replica's address, HOST:PORT. The key is the same on every replica.
func NewAnnouncer(key [32]byte, instance, address string) *Announcer {
	return &Announcer{key, instance, address}
}

// Announce is the value of fence.TunnelAnnotation: "HOST:PORT UNIXTIME MAC".
func (a *Announcer) Announce(node types.NodeName, now time.Time) string {
	at := strconv.FormatInt(now.Unix(), 10)
	return a.address + " " + at + " " + sign(a.key, node, a.instance, a.address, at)
}

// sign is HMAC-SHA256 (RFC 2104). No part can contain a space or a NUL: the address is cut at
// spaces, the others are names of Kubernetes and a number.
func sign(key [32]byte, node types.NodeName, instance, address, at string) string {
	mac := hmac.New(sha256.New, key[:])
	fmt.Fprintf(mac, "%s\x00%s\x00%s\x00%s", node, instance, address, at)
	return hex.EncodeToString(mac.Sum(nil))
}

// verify reads an announcement of the replica that is called instance.
func verify(key [32]byte, node types.NodeName, instance, value string, now time.Time) (address string, err error) {
	parts := strings.Split(value, " ")
	if len(parts) != 3 {
		return "", errors.New("the announcement is not ADDRESS TIME MAC")
	}
	if !hmac.Equal([]byte(parts[2]), []byte(sign(key, node, instance, parts[0], parts[1]))) {
		return "", errors.New("the announcement was not made by a replica of cloudcore")
	}
	seconds, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return "", fmt.Errorf("the announcement has no time: %w", err)
	}
	if age := now.Sub(time.Unix(seconds, 0)); age > announceLife || age < -announceLife {
		return "", fmt.Errorf("the announcement is %v old", age.Round(time.Second))
	}
	if _, _, err := net.SplitHostPort(parts[0]); err != nil {
		return "", fmt.Errorf("the announcement has no address: %w", err)
	}
	return parts[0], nil
}
