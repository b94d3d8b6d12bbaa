package pki

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"k8s.io/cluster-bootstrap/util/tokens"
)

// Pin is the SHA-256 of a CA's SubjectPublicKeyInfo: a CA may be reissued with the same key and
// still matches (RFC 7469, section 2.4; kubeadm's --discovery-token-ca-cert-hash is the same sum).
type Pin [sha256.Size]byte

// PinOf is the pin of cert's key.
func PinOf(cert *x509.Certificate) Pin { return sha256.Sum256(cert.RawSubjectPublicKeyInfo) }

func (p Pin) String() string { return "sha256:" + hex.EncodeToString(p[:]) }

// Token lets a device join: a Kubernetes bootstrap token, and the pin of the CA that the device may
// send it to.
type Token struct {
	ID     string // 6 characters, no secret
	Secret string // 16 characters
	CA     Pin
}

// NewToken makes a token for the cloud whose CA is pinned.
func NewToken(ca Pin) (Token, error) {
	s, err := bootstraputil.GenerateBootstrapToken()
	if err != nil {
		return Token{}, fmt.Errorf("making a token: %w", err)
	}
	id, secret, err := tokens.ParseToken(s)
	if err != nil {
		return Token{}, fmt.Errorf("making a token: %w", err)
	}
	return Token{ID: id, Secret: secret, CA: ca}, nil
}

// ParseToken reads the printed form, ID.SECRET@sha256:HEX. Its errors never contain the secret.
func ParseToken(s string) (Token, error) {
	bearer, pin, found := strings.Cut(strings.TrimSpace(s), "@")
	if !found {
		return Token{}, errors.New("the token has no CA hash: it must look like ID.SECRET@sha256:HASH, as `cloudcore token create` printed it")
	}
	id, secret, err := ParseBearer(bearer)
	if err != nil {
		return Token{}, err
	}
	digits, ok := strings.CutPrefix(pin, "sha256:")
	if !ok {
		return Token{}, errors.New("the CA hash of the token does not begin with \"sha256:\"")
	}
	sum, err := hex.DecodeString(digits)
	if err != nil || len(sum) != sha256.Size {
		return Token{}, fmt.Errorf("the CA hash of the token must be %d hex digits; was the token copied whole?", 2*sha256.Size)
	}
	return Token{ID: id, Secret: secret, CA: Pin(sum)}, nil
}

// ParseBearer reads ID.SECRET, the form in which the token goes over the wire.
func ParseBearer(s string) (id, secret string, err error) {
	if id, secret, err = tokens.ParseToken(s); err != nil {
		// Kubernetes' error would print the secret.
		return "", "", errors.New("the token must begin with 6 characters, a dot and 16 characters, all of a-z and 0-9; was it copied whole?")
	}
	return id, secret, nil
}

// Bearer is the token's part for Kubernetes' bootstrap authenticator.
func (t Token) Bearer() string { return t.ID + "." + t.Secret }

// String is the printed form, secret and all.
func (t Token) String() string { return t.Bearer() + "@" + t.CA.String() }
