package edgeapi_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/tests/smalldisk"
)

func TestMain(m *testing.M) {
	if !smalldisk.Child(map[string]func(string) error{"served": fullDisk}) {
		os.Exit(m.Run())
	}
}

// On a full disk the API starts, and the admin's kubeconfig of the previous start works.
func TestAFullDiskIsServed(t *testing.T) {
	smalldisk.Run(t, "served")
}

func fullDisk(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ask := func(listen string) (server string, err error) {
		file, err := store.Open(ctx, store.Config{Path: filepath.Join(dir, "store.db")})
		if err != nil {
			return "", err
		}
		defer file.Close()
		m := metamanager.New(metamanager.Config{NodeName: node, Store: file})
		s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: m, State: file.Module(string(edgeapi.Name)), DataDir: dir, Listen: listen})
		serving, stop := context.WithCancel(ctx)
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- s.Serve(serving, func() { close(ready) }) }()
		select {
		case <-ready:
		case err := <-done:
			stop()
			return "", fmt.Errorf("it does not start: %w", err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, edgeapi.KubeconfigFile))
		if err == nil {
			var c kubernetes.Interface
			if c, err = kubernetes.NewForConfig(config); err == nil {
				_, err = c.Discovery().RESTClient().Get().AbsPath("/healthz").DoRaw(ctx)
			}
		}
		stop()
		if endErr := <-done; err == nil {
			err = endErr
		}
		if err != nil {
			return "", err
		}
		return strings.TrimPrefix(config.Host, "https://"), nil
	}
	listen, err := ask("127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("with room: %w", err)
	}
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		return err
	}
	for err == nil {
		_, err = filler.Write(make([]byte, 512))
	}
	filler.Close()
	if _, err := ask(listen); err != nil {
		return fmt.Errorf("on a full disk: %w", err)
	}
	return nil
}
