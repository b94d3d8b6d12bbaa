package app_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skerry-io/skerry/cloud/app"
	"github.com/skerry-io/skerry/cloud/internal/core/config"
	"github.com/skerry-io/skerry/common/notifytest"
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
	systemd := notifytest.New(t)
	systemd.Watch(300 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx, cfg, nil) }()
	for range 5 {
		if got := systemd.Hear(); got != "WATCHDOG=1" {
			t.Fatalf("systemd heard %q", got)
		}
	}
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "reading the CA") {
		t.Errorf("it ended with %v, want what it waited for", err)
	}
}
