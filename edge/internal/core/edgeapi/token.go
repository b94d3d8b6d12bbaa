package edgeapi

import (
	"errors"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// claims has the fields that the edge reads of a ServiceAccount token (KEP-1205), a JSON Web Token
// (RFC 7519). The subject is system:serviceaccount:NAMESPACE:NAME.
type claims struct {
	jwt.Claims
	Kubernetes struct {
		Namespace string `json:"namespace"`
		Pod       *struct {
			Name string `json:"name"`
			UID  string `json:"uid"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
}

// token is a parsed ServiceAccount token; its signature has not been verified.
type token struct {
	parsed    *jwt.JSONWebToken
	algorithm string
	keyID     string
	claims    claims
}

const maxToken = 16 << 10 // of a header, net/http allows more

var (
	errToken     = errors.New("not a ServiceAccount token")
	errSignature = errors.New("the token's signature is not of this cluster")
	errNoKey     = errors.New("the key that signed the token is not known here")
)

// algorithms are those that Kubernetes signs ServiceAccount tokens with (RFC 7518, 3.1). Unsigned
// tokens and shared secrets are not among them.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// parseToken takes a token apart.
func parseToken(text string) (token, error) {
	if len(text) > maxToken {
		return token{}, errToken
	}
	parsed, err := jwt.ParseSigned(text, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return token{}, errToken
	}
	t := token{parsed: parsed, algorithm: parsed.Headers[0].Algorithm, keyID: parsed.Headers[0].KeyID}
	if err := parsed.UnsafeClaimsWithoutVerification(&t.claims); err != nil {
		return token{}, errToken
	}
	if !strings.HasPrefix(t.claims.Subject, "system:serviceaccount:") {
		return token{}, errToken
	}
	return t, nil
}

// keySet is a JSON Web Key Set (RFC 7517), as kube-apiserver publishes it at /openid/v1/jwks.
type keySet = jose.JSONWebKeySet

// verify checks the signature of a token. A key is good for the algorithm that it was published
// for, and for no other.
func verify(keys keySet, t token) error {
	known := false
	for _, key := range keys.Key(t.keyID) {
		if key.Algorithm != t.algorithm || !key.IsPublic() {
			continue
		}
		known = true
		if t.parsed.Claims(key.Key) == nil {
			return nil
		}
	}
	if !known {
		return errNoKey
	}
	return errSignature
}
