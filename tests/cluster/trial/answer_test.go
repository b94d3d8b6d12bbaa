package trial

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/skerry-io/skerry/tests/cluster/process"
)

// findSelf makes a host's processes of this one, which runs.
func findSelf() (func(program string) map[string]process.Identity, error) {
	id, err := process.Find(os.Getpid())
	return func(program string) map[string]process.Identity { return map[string]process.Identity{program: id} }, err
}

func TestSocketIn(t *testing.T) {
	for config, want := range map[string]string{
		"{}":                                   "/run/skerry/edge.sock",
		"{modules: {edgeAPI: {enable: true}}}": "/run/skerry/edge.sock",
		"{modules: {edgeAPI: {socket: /run/other.sock}}}":                      "/run/other.sock",
		"{modules: {edgeAPI: {socket: ''}}}":                                   "",
		"{modules: {edgeAPI: {enable: false, socket: /run/skerry/edge.sock}}}": "",
	} {
		if got, err := socketIn([]byte(config)); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", config, got, err, want)
		}
	}
}

// An edgecore that runs, and listens, has not answered yet.
func TestAskStatus(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	if askStatus(t.Context(), socket) == nil {
		t.Error("nobody listens, and it answers")
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	status := http.StatusServiceUnavailable
	mux := http.NewServeMux()
	mux.HandleFunc("GET /skerry/v1/status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	server := http.Server{Handler: mux}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Shutdown(context.Background())
		<-done
	})
	if askStatus(t.Context(), socket) == nil {
		t.Error("503 is an answer")
	}
	status = http.StatusOK
	if err := askStatus(t.Context(), socket); err != nil {
		t.Error(err)
	}
}
