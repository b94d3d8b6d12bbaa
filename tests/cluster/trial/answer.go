package trial

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"sigs.k8s.io/yaml"
)

// Answers returns when edgecore on a node answers `edgecore status`: the next command may be one
// that asks it. It is not ready then, and its kubelet may still start. Other programs answer once
// they are started; an edgecore that was told to answer nobody is not waited for.
func (t *Trial) Answers(ctx context.Context, host, name string) error {
	if name != "edgecore" {
		return nil
	}
	socket, err := t.edgeSocket(host)
	if err != nil || socket == "" {
		return err
	}
	m := t.machine(host)
	return t.await(ctx, host, program{name: name, ready: func(ctx context.Context) error {
		return askStatus(ctx, filepath.Join(m.Root(), socket))
	}}, m.Processes[name])
}

// edgeSocket is where edgecore on a node listens, by its configuration; "" for nowhere.
func (t *Trial) edgeSocket(host string) (string, error) {
	raw, err := t.readHost(host, edgecoreConfig)
	if err != nil {
		return "", err
	}
	return socketIn(raw)
}

func socketIn(edgecore []byte) (string, error) {
	var config struct {
		Modules struct {
			EdgeAPI struct {
				Enable *bool
				Socket *string
			}
		}
	}
	if err := yaml.Unmarshal(edgecore, &config); err != nil {
		return "", fmt.Errorf("reading %s: %w", edgecoreConfig, err)
	}
	switch api := config.Modules.EdgeAPI; {
	case api.Enable != nil && !*api.Enable:
		return "", nil
	case api.Socket != nil:
		return *api.Socket, nil
	}
	return "/run/skerry/edge.sock", nil
}

// askStatus asks as `edgecore status` does.
func askStatus(ctx context.Context, socket string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://edgecore/skerry/v1/status", http.NoBody)
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("edgecore answers %s", res.Status)
	}
	return nil
}
