package logging_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/common/logging"
)

// Kubernetes' own client logs the bodies of its requests at a high verbosity; this log leaves them
// out, in both formats.
func TestLog_noBodies(t *testing.T) {
	const sent, got = "s3cret-that-is-sent", "s3cret-that-is-received"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "stringData": {"password": %q}}`, got)
	}))
	defer server.Close()
	for _, format := range logging.Formats() {
		var out bytes.Buffer
		_, logger := logging.New(logging.Config{Format: format, Verbosity: logging.MaxVerbosity, Output: &out})
		client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, BearerToken: "s3cret-token", ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.CoreV1().Secrets("x").Create(logr.NewContext(t.Context(), logger), &corev1.Secret{StringData: map[string]string{"password": sent}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(out.String(), "left out") != 2 || strings.Contains(out.String(), "s3cret") {
			t.Errorf("%s: %s", format, &out)
		}
	}
}
