package otlp_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/cloud/internal/core/otlp"
)

// A receiver of an unknown CA: the error names the setting.
func TestPostNamesTheCA(t *testing.T) {
	receiver := httptest.NewTLSServer(http.NotFoundHandler())
	defer receiver.Close()
	client, err := otlp.New(otlp.Config{Field: "metrics", Endpoint: receiver.URL})
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Post(t.Context(), []byte("{}")); err == nil || !strings.Contains(err.Error(), "set metrics.caFile") {
		t.Error(err)
	}
}
