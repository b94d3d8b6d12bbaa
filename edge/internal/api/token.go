package api

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	_ "crypto/sha256" // the hashes of the algorithms below
	_ "crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// claims is what the edge reads of a ServiceAccount token (KEP-1205): a JSON Web Token (RFC 7519), signed (RFC 7515).
type claims struct {
	Subject    string `json:"sub"` // system:serviceaccount:NAMESPACE:NAME
	Kubernetes struct {
		Namespace string `json:"namespace"`
		Pod       *struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// jwt is a token taken apart; its signature has not been looked at.
type jwt struct {
	algorithm string
	keyID     string
	claims    claims
	signed    string // what the signature is of
	signature []byte
}

const maxToken = 16 << 10 // of a header, net/http allows more

var (
	errToken     = errors.New("not a ServiceAccount token")
	errSignature = errors.New("the token's signature is not of this cluster")
	errNoKey     = errors.New("the key that signed the token is not known here")
)

// parseToken takes a token apart.
func parseToken(token string) (jwt, error) {
	if len(token) > maxToken {
		return jwt{}, errToken
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return jwt{}, errToken
	}
	var decoded [3][]byte
	for i, p := range parts {
		b, err := base64.RawURLEncoding.DecodeString(p)
		if err != nil {
			return jwt{}, errToken
		}
		decoded[i] = b
	}
	var header struct {
		Algorithm string   `json:"alg"`
		KeyID     string   `json:"kid"`
		Critical  []string `json:"crit"`
	}
	j := jwt{signed: parts[0] + "." + parts[1], signature: decoded[2]}
	if json.Unmarshal(decoded[0], &header) != nil || json.Unmarshal(decoded[1], &j.claims) != nil {
		return jwt{}, errToken
	}
	// "crit" lists extensions that must be understood (RFC 7515, 4.1.11); Kubernetes has none.
	if len(header.Critical) > 0 || !strings.HasPrefix(j.claims.Subject, "system:serviceaccount:") {
		return jwt{}, errToken
	}
	j.algorithm, j.keyID = header.Algorithm, header.KeyID
	return j, nil
}

// keySet is a JSON Web Key Set (RFC 7517), as kube-apiserver publishes it at /openid/v1/jwks.
type keySet struct {
	Keys []webKey `json:"keys"`
}

type webKey struct {
	Type      string `json:"kty"`
	ID        string `json:"kid"`
	Algorithm string `json:"alg"`
	N         string `json:"n,omitempty"` // RSA
	E         string `json:"e,omitempty"`
	Curve     string `json:"crv,omitempty"` // EC
	X         string `json:"x,omitempty"`
	Y         string `json:"y,omitempty"`
}

// algorithms are those that Kubernetes signs ServiceAccount tokens with (RFC 7518, 3.1). "none" and those with shared secrets are not among them.
var algorithms = map[string]struct {
	hash  crypto.Hash
	curve elliptic.Curve
}{
	"RS256": {hash: crypto.SHA256},
	"ES256": {crypto.SHA256, elliptic.P256()},
	"ES384": {crypto.SHA384, elliptic.P384()},
	"ES512": {crypto.SHA512, elliptic.P521()},
}

// verify checks the signature of j.
func (s keySet) verify(j jwt) error {
	algorithm, ok := algorithms[j.algorithm]
	if !ok {
		return errToken
	}
	known := false
	for _, k := range s.Keys {
		if k.ID != j.keyID || k.Algorithm != j.algorithm {
			continue
		}
		known = true
		hash := algorithm.hash.New()
		hash.Write([]byte(j.signed))
		digest := hash.Sum(nil)
		if algorithm.curve == nil {
			public, err := k.rsa()
			if err == nil && rsa.VerifyPKCS1v15(public, algorithm.hash, digest, j.signature) == nil {
				return nil
			}
			continue
		}
		public, err := k.ecdsa(algorithm.curve)
		size := (algorithm.curve.Params().BitSize + 7) / 8
		if err != nil || len(j.signature) != 2*size { // RFC 7518, 3.4: r and s, each of the curve's size
			continue
		}
		r, sig := new(big.Int).SetBytes(j.signature[:size]), new(big.Int).SetBytes(j.signature[size:])
		if ecdsa.Verify(public, digest, r, sig) {
			return nil
		}
	}
	if !known {
		return errNoKey
	}
	return errSignature
}

func (k webKey) rsa() (*rsa.PublicKey, error) {
	n, err := base64.RawURLEncoding.DecodeString(k.N)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", k.ID, err)
	}
	e, err := base64.RawURLEncoding.DecodeString(k.E)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", k.ID, err)
	}
	exponent := new(big.Int).SetBytes(e)
	if k.Type != "RSA" || len(n) < 256 || len(n) > 2048 || !exponent.IsInt64() || exponent.Int64() < 3 || exponent.Int64() > 1<<31-1 {
		return nil, fmt.Errorf("key %s: not an RSA key of 2048 to 16384 bits", k.ID)
	}
	return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(exponent.Int64())}, nil
}

func (k webKey) ecdsa(curve elliptic.Curve) (*ecdsa.PublicKey, error) {
	if k.Type != "EC" || k.Curve != curve.Params().Name {
		return nil, fmt.Errorf("key %s: not on %s", k.ID, curve.Params().Name)
	}
	x, err := base64.RawURLEncoding.DecodeString(k.X)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", k.ID, err)
	}
	y, err := base64.RawURLEncoding.DecodeString(k.Y)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", k.ID, err)
	}
	size := (curve.Params().BitSize + 7) / 8
	if len(x) != size || len(y) != size {
		return nil, fmt.Errorf("key %s: a coordinate has the wrong size", k.ID)
	}
	// The uncompressed point of SEC 1; parsing it checks that it is on the curve.
	return ecdsa.ParseUncompressedPublicKey(curve, bytes.Join([][]byte{{4}, x, y}, nil))
}
