package edged

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A request that can't be answered without a link fails at once, as with an unreachable
// kube-apiserver; a set that is about to be synced is waited for.
func TestGate_doesNotHoldTheKubeletUp(t *testing.T) {
	g := newGate(roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {"5"}}, Body: io.NopCloser(strings.NewReader(""))}, nil
	}))
	for request, want := range map[string]string{
		"PUT /apis/storage.k8s.io/v1/csinodes/a":                       "",
		"GET /apis/storage.k8s.io/v1/volumeattachments/a":              "",
		"DELETE /apis/resource.k8s.io/v1/resourceslices?fieldSelector": "",
		"GET /api/v1/services?limit=500":                               "5",
		"GET /api/v1/services?watch=true":                              "5",
	} {
		method, path, _ := strings.Cut(request, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, "http://edgecore"+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := g.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if got := answer.Header.Get("Retry-After"); got != want {
			t.Errorf("%s: Retry-After %q, want %q", request, got, want)
		}
	}
}
