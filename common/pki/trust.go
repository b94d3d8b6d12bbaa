package pki

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
)

// TrustSum is a digest of a device's trust: the authorities of the cloud, and those of the
// cluster's clients. Equal sets in equal order have equal sums.
func TrustSum(ca, clientCA []*x509.Certificate) []byte {
	h := sha256.New()
	for _, set := range [][]*x509.Certificate{ca, clientCA} {
		_ = binary.Write(h, binary.BigEndian, uint32(len(set))) // to a hash, which never fails
		for _, c := range set {
			_ = binary.Write(h, binary.BigEndian, uint32(len(c.Raw)))
			h.Write(c.Raw)
		}
	}
	return h.Sum(nil)[:8]
}
