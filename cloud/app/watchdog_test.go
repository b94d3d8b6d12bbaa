package app_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/skerry-io/skerry/cloud/app"
	"github.com/skerry-io/skerry/cloud/internal/config"
)

// A cloudcore that waits for kube-apiserver is well, for systemd too.
func TestRunWhileKubeAPIServerIsAway(t *testing.T) {
	dir := t.TempDir()
	away, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := away.Addr()
	_ = away.Close()
	cfg := config.Default()
	cfg.Advertise = []string{"cloud.example.com"}
	cfg.Kubeconfig = filepath.Join(dir, "kubeconfig")
	kubeconfig := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
clusters: [{name: a, cluster: {server: "https://%s"}}], users: [{name: a, user: {token: a}}]}`, address)
	if err := os.WriteFile(cfg.Kubeconfig, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("WATCHDOG_USEC", "300000")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx, cfg) }()
	b := make([]byte, 64)
	for range 5 {
		n, err := systemd.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(b[:n]); got != "WATCHDOG=1" {
			t.Fatalf("systemd heard %q", got)
		}
	}
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "reading the CA") {
		t.Errorf("it ended with %v, want what it waited for", err)
	}
}
