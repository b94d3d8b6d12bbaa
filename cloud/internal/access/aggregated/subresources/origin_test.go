package subresources

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/skerry-io/skerry/common/podstream"
)

// TestClaims_15_WebPageOpensNoStream: an administrator runs `kubectl proxy`, whose default refusals
// do not cover this API, and a web page opens a websocket there. Logs are no streams: whether a
// page may read an answer is the browser's to decide.
func TestClaims_15_WebPageOpensNoStream(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "subjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
	})
	s := New(Config{Client: client, User: func(*http.Request) (user.Info, bool) { return &user.DefaultInfo{Name: "admin"}, true }})
	server := httptest.NewServer(s.api(t.Context()))
	defer server.Close()
	ask := func(method, sub string, header http.Header) (int, string) {
		r, err := http.NewRequestWithContext(context.Background(), method, server.URL+"/apis/"+Group+"/"+Version+"/namespaces/default/pods/p/"+sub+"?command=id&ports=80", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = header
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var body strings.Builder
		_ = res.Write(&body)
		return res.StatusCode, body.String()
	}
	for _, sub := range podstream.Subresources() {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if method == http.MethodPost && !sub.Streams {
				continue
			}
			code, body := ask(method, sub.Name, http.Header{"Origin": {"https://evil.example"}})
			if refused := code == http.StatusForbidden && strings.Contains(body, "Origin"); refused != sub.Streams {
				t.Errorf("%s %s with Origin: %d %s", method, sub.Name, code, body)
			}
			if code, body := ask(method, sub.Name, http.Header{}); code != http.StatusNotFound { // judged, and there is no such pod
				t.Errorf("%s %s: %d %s", method, sub.Name, code, body)
			}
		}
	}
}
