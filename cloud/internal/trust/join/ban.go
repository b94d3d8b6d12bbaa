package join

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/skerry-io/skerry/common/pki"
)

const (
	// settleTime is how long after a revocation every renewal for the node is refused: longer than
	// the slowest replica takes to read the list and to end the node's session.
	settleTime = 10 * time.Second

	// noteTime is how long after a revocation a certificate may still have a NotBefore from before
	// it: the backdating of kube-controller-manager's signer (5 minutes, a constant of its
	// csrsigning), and as much again for a signer whose clock is behind kube-apiserver's.
	noteTime = 10 * time.Minute

	// keysKept bounds the keys of an entry. At the bound the oldest goes, and with it the
	// certificate of that key: so many devices don't join as one node within noteTime.
	keysKept = 8
)

// never is later than every certificate: an entry that can't be read must not let anything in.
func never() time.Time { return time.Unix(1<<40, 0) }

// A ban is a node's entry of the list. It is "TIME [KEY ...]": certificates issued before TIME are
// refused, except those of the keys, which were requested after the revocation.
type ban struct {
	since time.Time // by kube-apiserver's clock: the revocation and settleTime
	keys  []string  // SHA-256 of the public keys (SubjectPublicKeyInfo) in hex, the latest last
}

// Ban is the public part of a ban.
type Ban struct {
	Since time.Time
	Keys  []string // SHA-256 of public keys, in hex
}

// newBan is the entry of a revocation at a time of kube-apiserver's clock.
func newBan(at time.Time) ban { return ban{since: at.Add(settleTime)} }

// parseBan reads an entry. With an error the entry refuses everything.
func parseBan(value string) (ban, error) {
	fields := strings.Fields(value)
	if len(fields) == 0 {
		return ban{since: never()}, errors.New("the entry has no time")
	}
	since, err := time.Parse(time.RFC3339, fields[0])
	if err != nil {
		return ban{since: never()}, fmt.Errorf("the entry has no valid time: %w", err)
	}
	return ban{since: since, keys: fields[1:]}, nil
}

func (b ban) String() string {
	return strings.Join(append([]string{b.since.UTC().Format(time.RFC3339)}, b.keys...), " ")
}

// refuses reports whether a certificate is banned. One issued after the entry's time may have a
// NotBefore from before it; then the approver has noted its key.
func (b ban) refuses(cert *x509.Certificate) bool {
	return cert.NotBefore.Before(b.since) && !slices.Contains(b.keys, keyID(cert.RawSubjectPublicKeyInfo))
}

// near reports whether a certificate's key may have been noted.
func (b ban) near(cert *x509.Certificate) bool {
	return !cert.NotBefore.Before(b.since.Add(-settleTime - noteTime))
}

// judge refuses a certificate request that may be the revoked device's: each one from before the
// revocation, and a node's own until every session of the device has ended. A join with a token
// needs no session.
func (b ban) judge(created time.Time, join bool) error {
	limit := b.since
	if join {
		limit = limit.Add(-settleTime)
	}
	if created.Before(limit) {
		return pki.Refuse(pki.ReasonRevoked, "the node's certificates were revoked: no request from before %s is approved",
			limit.UTC().Format(time.RFC3339))
	}
	return nil
}

// noted is the entry with the key of a request that is about to be approved, and whether
// that is a change.
func (b ban) noted(created time.Time, spki []byte) (ban, bool) {
	id := keyID(spki)
	if !created.Before(b.since.Add(noteTime)) || slices.Contains(b.keys, id) {
		return b, false
	}
	keys := append(slices.Clone(b.keys), id)
	return ban{since: b.since, keys: keys[max(0, len(keys)-keysKept):]}, true
}

func keyID(spki []byte) string {
	sum := sha256.Sum256(spki)
	return hex.EncodeToString(sum[:])
}
