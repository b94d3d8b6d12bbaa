package kube_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/cloud/internal/core/kube"
)

// hanging is a server, or a proxy before one, that holds its first request until the
// client gives up.
type hanging struct{ held bool }

func (h *hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: r}
	switch {
	case !h.held:
		h.held = true
		<-r.Context().Done()
		return nil, r.Context().Err()
	case r.URL.Query().Get("watch") != "":
		body, end := io.Pipe()
		context.AfterFunc(r.Context(), func() { end.CloseWithError(io.EOF) })
		answer.Body = body
	default:
		answer.Body = io.NopCloser(strings.NewReader(`{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"a","namespace":"n"}}]}`))
	}
	return answer, nil
}

// A list or a watch that hangs ends, though its caller gave it all the time in the world, as the
// informers of client-go do: one of them brings the CA of devices' certificates, without which
// cloudcore takes no device. The next is answered, and a watch that was opened lasts.
func TestReadsThatHangAreGivenUp(t *testing.T) {
	for name, o := range map[string]metav1.ListOptions{
		"one object": {FieldSelector: "metadata.name=a"}, "a collection": {}, "a watch": {Watch: true, FieldSelector: "metadata.name=a"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, err := kube.NewClient(&rest.Config{Host: "http://apiserver.test", Transport: &hanging{}}, kube.Constrained)
				if err != nil {
					t.Fatal(err)
				}
				maps := client.Kubernetes().CoreV1().ConfigMaps("n")
				call := func() error {
					if !o.Watch {
						list, err := maps.List(t.Context(), o)
						if err == nil && len(list.Items) != 1 {
							t.Errorf("got %v", list.Items)
						}
						return err
					}
					w, err := maps.Watch(t.Context(), o)
					if err != nil {
						return err
					}
					defer w.Stop()
					select {
					case e, open := <-w.ResultChan():
						t.Errorf("the watch ended: %v, %v", e, open)
					case <-time.After(24 * time.Hour): // of the bubble's clock
					}
					return nil
				}
				if err := call(); err == nil || !strings.Contains(err.Error(), "did not answer within") {
					t.Fatalf("the call that hangs: %v", err)
				}
				if err := call(); err != nil {
					t.Errorf("the next: %v", err)
				}
			})
		})
	}
}
