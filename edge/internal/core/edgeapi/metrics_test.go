package edgeapi_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
)

func TestMetrics(t *testing.T) {
	b := newFakeBackend(t)
	b.sync(pods)
	b.set(pods, pod("a"))
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: b, MaxRequests: 1, MaxWatches: 1})
	kubelet := client(t, s.ClientConfig(edgeapi.Identity{Kubelet: true}))
	if _, err := kubelet.CoreV1().Pods("default").Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kubelet.CoreV1().Pods("default").Get(t.Context(), "gone", metav1.GetOptions{}); err == nil {
		t.Fatal("found what is not there")
	}
	device := s.Handler(edgeapi.AsDevice)
	device.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("BREW", "/coffee", nil))
	ctx, cancel := context.WithCancel(t.Context())
	w, err := kubelet.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	<-w.ResultChan()
	want := `
# HELP skerry_edgeapi_requests_total Requests answered, watches when they end, by client (kubelet, edgecore, device, pod), verb and code.
# TYPE skerry_edgeapi_requests_total counter
skerry_edgeapi_requests_total{client="device",code="403",verb="other"} 1
skerry_edgeapi_requests_total{client="kubelet",code="200",verb="get"} 1
skerry_edgeapi_requests_total{client="kubelet",code="404",verb="get"} 1
# HELP skerry_edgeapi_watches Open watches, by client.
# TYPE skerry_edgeapi_watches gauge
skerry_edgeapi_watches{client="kubelet"} 1
`
	if err := testutil.CollectAndCompare(s.Metrics(), strings.NewReader(want), "skerry_edgeapi_requests_total", "skerry_edgeapi_watches"); err != nil {
		t.Error(err)
	}
	w.Stop()
	cancel()
}
