package edgeapi

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
)

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// signer makes tokens and publishes its key.
type signer struct {
	sign func(t *testing.T, signed string) []byte
	key  jose.JSONWebKey
}

func rsaSigner(t *testing.T, id string) signer {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return signer{
		key: jose.JSONWebKey{Key: &k.PublicKey, KeyID: id, Algorithm: "RS256", Use: "sig"},
		sign: func(t *testing.T, signed string) []byte {
			digest := sha256.Sum256([]byte(signed))
			b, err := rsa.SignPKCS1v15(rand.Reader, k, crypto.SHA256, digest[:])
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
	}
}

func ecSigner(t *testing.T, id string) signer {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{
		key: jose.JSONWebKey{Key: &k.PublicKey, KeyID: id, Algorithm: "ES256", Use: "sig"},
		sign: func(t *testing.T, signed string) []byte {
			digest := sha256.Sum256([]byte(signed))
			r, s, err := ecdsa.Sign(rand.Reader, k, digest[:])
			if err != nil {
				t.Fatal(err)
			}
			return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
		},
	}
}

func (s signer) token(t *testing.T, alg, kid, claims string) string {
	signed := encode([]byte(`{"alg":"`+alg+`","kid":"`+kid+`"}`)) + "." + encode([]byte(claims))
	return signed + "." + encode(s.sign(t, signed))
}

const account = `{"sub":"system:serviceaccount:default:app","exp":1,"kubernetes.io":{"namespace":"default","pod":{"name":"web","uid":"uid-web"}}}`

// short takes the last byte off a token's signature.
func short(token string) string {
	i := strings.LastIndex(token, ".") + 1
	signature, _ := base64.RawURLEncoding.DecodeString(token[i:])
	return token[:i] + encode(signature[:len(signature)-1])
}

func TestTokenSignatures(t *testing.T) {
	r, e, other := rsaSigner(t, "r"), ecSigner(t, "e"), rsaSigner(t, "r")
	keys := keySet{Keys: []jose.JSONWebKey{r.key, e.key}}
	good := r.token(t, "RS256", "r", account)
	parts := strings.Split(good, ".")
	tests := map[string]struct {
		token string
		want  error
	}{
		"RSA":                    {good, nil},
		"ECDSA":                  {e.token(t, "ES256", "e", account), nil},
		"another cluster's":      {other.token(t, "RS256", "r", account), errSignature},
		"an unknown key":         {r.token(t, "RS256", "x", account), errNoKey},
		"claims changed":         {parts[0] + "." + encode([]byte(strings.Replace(account, "app", "admin", 1))) + "." + parts[2], errSignature},
		"no signature":           {parts[0] + "." + parts[1] + ".", errSignature},
		"algorithm none":         {r.token(t, "none", "r", account), errToken},
		"a shared secret":        {r.token(t, "HS256", "r", account), errToken},
		"another's algorithm":    {e.token(t, "ES256", "r", account), errNoKey},
		"a short ECDSA one":      {short(e.token(t, "ES256", "e", account)), errSignature},
		"not of an account":      {r.token(t, "RS256", "r", `{"sub":"admin"}`), errToken},
		"no token":               {"abc", errToken},
		"two dots and no base64": {"!.!.!", errToken},
		"too long":               {strings.Repeat("a", maxToken+1), errToken},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			j, err := parseToken(test.token)
			if err == nil {
				err = verify(keys, j)
			}
			if !errors.Is(err, test.want) || (test.want == nil) != (err == nil) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
	j, err := parseToken(good)
	if err != nil || j.claims.Subject != "system:serviceaccount:default:app" || j.claims.Kubernetes.Pod.UID != "uid-web" {
		t.Errorf("claims: %+v, %v", j.claims, err)
	}
}

// cutOff is a backend that was linked once and now holds one pod.
type cutOff struct {
	Backend
	linked bool
	keys   keySet
	asked  []string
	pod    object.Object
}

func (b *cutOff) Request(_ context.Context, r *topicpb.APIRequest) (*topicpb.APIResponse, error) {
	if !b.linked {
		return nil, unavailable("no link")
	}
	b.asked = append(b.asked, r.GetPath())
	var answer any = &authorizationv1.SelfSubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}
	if r.GetPath() == "/openid/v1/jwks" {
		answer = b.keys
	}
	body, err := json.Marshal(answer)
	return &topicpb.APIResponse{Code: 200, Body: body}, err
}

// set replaces the cached objects by the pod default/web.
func (b *cutOff) set(t *testing.T, uid types.UID, deleted *metav1.Time) {
	t.Helper()
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	o, err := object.FromObject(pods, &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: uid, DeletionTimestamp: deleted},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.pod = o
}

func (b *cutOff) List(_ context.Context, s object.Selection, _ metamanager.ListOptions) ([]object.Object, uint64, error) {
	if s.Name() == b.pod.Name && s.Namespace == b.pod.Namespace {
		return []object.Object{b.pod}, 1, nil
	}
	return nil, 1, nil
}

// openState opens the API's State in the store of a device.
func openState(t *testing.T) State {
	t.Helper()
	file, err := store.Open(t.Context(), store.Config{Path: filepath.Join(t.TempDir(), "store.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return file.Module(string(Name))
}

// TestTokensWithoutALink: after a start without a link, a token that this process has never seen is
// judged by the cluster's kept keys and by its pod.
func TestTokensWithoutALink(t *testing.T) {
	state := openState(t)
	cluster, stranger := rsaSigner(t, "k"), rsaSigner(t, "k")
	b := &cutOff{linked: true, keys: keySet{Keys: []jose.JSONWebKey{cluster.key}}}
	b.set(t, "uid-web", nil)
	list := action{verb: "list", resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}}
	g := newGrants(b, state)
	for range 2 {
		if err := g.check(t.Context(), cluster.token(t, "RS256", "k", account), list); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.asked); n != 3 {
		t.Errorf("asked %v: the keys are asked for once", b.asked)
	}

	b.linked = false
	g = newGrants(b, state)
	here := action{"list", list.resource, "default", ""}
	tests := map[string]struct {
		token  string
		action action
		want   func(error) bool
	}{
		"a later token":         {cluster.token(t, "RS256", "k", account+" "), list, nil},
		"allowed everywhere":    {cluster.token(t, "RS256", "k", account), here, nil},
		"never asked":           {cluster.token(t, "RS256", "k", account), action{verb: "watch", resource: list.resource}, apierrors.IsServiceUnavailable},
		"a stranger's":          {stranger.token(t, "RS256", "k", account), list, apierrors.IsUnauthorized},
		"of a pod that is gone": {cluster.token(t, "RS256", "k", strings.Replace(account, "uid-web", "uid-old", 1)), list, apierrors.IsUnauthorized},
		"of another account":    {cluster.token(t, "RS256", "k", strings.Replace(account, "app", "other", 1)), list, apierrors.IsServiceUnavailable},
		"of an unknown key":     {cluster.token(t, "RS256", "new", account), list, apierrors.IsServiceUnavailable},
		"no token":              {"abc", list, apierrors.IsUnauthorized},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := g.check(t.Context(), test.token, test.action)
			if test.want == nil && err != nil || test.want != nil && !test.want(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// Without a link, a token is accepted if kube-apiserver would accept it: it is for the API, its pod
// is here, and where it has no pod it has not expired.
func TestTokensOffline(t *testing.T) {
	const api = "https://kubernetes.default.svc.cluster.local"
	cluster := ecSigner(t, "k")
	b := &cutOff{linked: true, keys: keySet{Keys: []jose.JSONWebKey{cluster.key}}}
	b.set(t, "uid-web", nil)
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	list := action{verb: "list", resource: pods}
	soon, past := time.Now().Add(time.Hour).Unix(), time.Now().Add(-time.Hour).Unix()
	bound := `"kubernetes.io":{"namespace":"default","pod":{"name":"web","uid":"uid-web"}}`
	unbound := `"kubernetes.io":{"namespace":"default","serviceaccount":{"name":"app","uid":"u"}}`
	token := func(claims string) string {
		return cluster.token(t, "ES256", "k", `{"sub":"system:serviceaccount:default:app",`+claims+`}`)
	}
	aud := func(a string) string { return `"aud":["` + a + `"],` }
	g := newGrants(b, openState(t))
	seen := token(aud(api) + fmt.Sprintf(`"exp":%d,`, past) + bound)
	if err := g.check(t.Context(), seen, list); err != nil {
		t.Fatal(err)
	}
	b.linked = false
	offline := map[string]struct {
		token string
		want  func(error) bool // nil: it is good
	}{
		"one that kube-apiserver accepted":     {seen, nil},
		"one of a pod, expired since":          {token(aud(api) + fmt.Sprintf(`"exp":%d,"jti":"2",`, past) + bound), nil},
		"for a vault":                          {token(aud("vault") + fmt.Sprintf(`"exp":%d,`, soon) + bound), apierrors.IsUnauthorized},
		"for a vault and for the API":          {token(`"aud":["vault","` + api + `"],` + fmt.Sprintf(`"exp":%d,`, soon) + bound), nil},
		"without a pod":                        {token(aud(api) + fmt.Sprintf(`"exp":%d,`, soon) + unbound), nil},
		"without a pod, expired":               {token(aud(api) + fmt.Sprintf(`"exp":%d,`, past) + unbound), apierrors.IsUnauthorized},
		"a legacy one, which never expires":    {token(`"kubernetes.io/serviceaccount/namespace":"default"`), apierrors.IsServiceUnavailable},
		"without a pod, for ever":              {token(aud(api) + unbound), apierrors.IsServiceUnavailable},
		"a legacy one that says it is a pod's": {token(bound), nil}, // signed by the cluster: it would not sign a false claim
	}
	for name, tc := range offline {
		t.Run(name, func(t *testing.T) {
			err := g.check(t.Context(), tc.token, list)
			if tc.want == nil && err != nil || tc.want != nil && !tc.want(err) {
				t.Errorf("got %v", err)
			}
		})
	}
	gone := map[string]func(){
		"its pod was deleted":            func() { b.pod = object.Object{} },
		"another pod has its name":       func() { b.set(t, "uid-new", nil) },
		"its pod has been ending for 2m": func() { b.set(t, "uid-web", &metav1.Time{Time: time.Now().Add(-2 * time.Minute)}) },
	}
	for name, change := range gone {
		t.Run(name, func(t *testing.T) {
			change()
			if err := g.check(t.Context(), seen, list); !apierrors.IsUnauthorized(err) {
				t.Errorf("the token that kube-apiserver accepted: %v", err)
			}
		})
	}
	// Audiences that kube-apiserver accepts are learnt again after a restart.
	b.set(t, "uid-web", nil)
	later := newGrants(b, g.state)
	if err := later.check(t.Context(), token(aud("vault")+bound), list); !apierrors.IsUnauthorized(err) {
		t.Errorf("for a vault, after a restart: %v", err)
	}
	if err := later.check(t.Context(), token(aud(api)+bound), list); err != nil {
		t.Errorf("for the API, after a restart: %v", err)
	}
}

func FuzzToken(f *testing.F) {
	f.Add("a.b.c", "n", "e")
	for _, header := range []string{`{"alg":"none"}`, `{"alg":"HS256","kid":"k"}`, `{"alg":"RS256","kid":"k","crit":["exp"]}`, `{"alg":"RS256","jwk":{"kty":"RSA","n":"AQAB","e":"AQAB"}}`, `{"alg":["RS256"]}`} {
		f.Add(encode([]byte(header))+"."+encode([]byte(account))+".", "AQAB", "AQAB")
	}
	f.Add(strings.Repeat("a", 100_000)+"."+strings.Repeat("b", 100_000)+".", "", "")
	f.Add(encode([]byte(`{"alg":"ES256","kid":"k"}`))+"."+encode([]byte(account))+"."+encode(make([]byte, 64)), "x", "y")
	f.Fuzz(func(t *testing.T, token, a, b string) {
		j, err := parseToken(token)
		if err != nil {
			return
		}
		var keys keySet
		set := `{"keys":[{"kty":"RSA","kid":"` + j.keyID + `","alg":"` + j.algorithm + `","n":"` + a + `","e":"` + b + `"}]}`
		if json.Unmarshal([]byte(set), &keys) == nil && verify(keys, j) == nil {
			t.Error("a forged signature is accepted")
		}
	})
}
