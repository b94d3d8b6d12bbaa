package join

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
)

// Derive makes a secret for a purpose, the same on every replica: HKDF (RFC 5869) of the CA's key.
func (c *CA) Derive(purpose string) ([32]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.Key)
	if err != nil {
		return [32]byte{}, fmt.Errorf("deriving a secret of the CA: %w", err)
	}
	secret, err := hkdf.Key(sha256.New, der, nil, purpose, 32)
	if err != nil {
		return [32]byte{}, fmt.Errorf("deriving a secret of the CA: %w", err)
	}
	return [32]byte(secret), nil
}
