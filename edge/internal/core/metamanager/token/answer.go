package token

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager/request"
)

// askAgain is the interval in which a kubelet asks again for a token that it has.
const askAgain = time.Minute

// forKubelet returns an answer for the kubelet, which asks again when a fifth of the token's life
// is left (requiresRefresh in pkg/kubelet/token of Kubernetes): its expiry is set so early that
// this is soon. The token itself is unchanged.
func forKubelet(result request.Result) request.Result {
	var r authenticationv1.TokenRequest
	if result.Response == nil || json.Unmarshal(result.Response.Body, &r) != nil || r.Status.Token == "" {
		return result
	}
	sooner := metav1.NewTime(time.Now().Add(life(&r)/5 + askAgain))
	if !sooner.Time.Before(r.Status.ExpirationTimestamp.Time) {
		return result
	}
	r.Status.ExpirationTimestamp = sooner
	body, err := json.Marshal(&r)
	if err != nil {
		return result
	}
	response := proto.CloneOf(result.Response)
	response.Body = body
	result.Response = response
	return result
}

// life is how long a token is good for.
func life(r *authenticationv1.TokenRequest) time.Duration {
	if r.Spec.ExpirationSeconds != nil {
		return time.Duration(*r.Spec.ExpirationSeconds) * time.Second
	}
	return time.Hour
}

// signed reads which key signed the token of an answer (RFC 7515, 4.1.4), and its sum.
func signed(body []byte) (keyID string, sum [sha256.Size]byte) {
	var r authenticationv1.TokenRequest
	if err := json.Unmarshal(body, &r); err != nil || r.Status.Token == "" {
		return "", sum
	}
	sum = sha256.Sum256([]byte(r.Status.Token))
	head, _, _ := strings.Cut(r.Status.Token, ".")
	raw, err := base64.RawURLEncoding.DecodeString(head)
	if err != nil {
		return "", sum
	}
	var header struct {
		KeyID string `json:"kid"`
	}
	if json.Unmarshal(raw, &header) != nil {
		return "", sum
	}
	return header.KeyID, sum
}

// ends reports whether an answer has its token's expiry: without one there is no time to ask again.
func ends(body []byte) bool {
	var r authenticationv1.TokenRequest
	return json.Unmarshal(body, &r) == nil && !r.Status.ExpirationTimestamp.IsZero()
}
