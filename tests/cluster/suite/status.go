package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/skerry-io/skerry/tests/cluster/trial"
)

// socket is where edgecore answers its commands (modules.edgeAPI.socket).
const socket = "/run/skerry/edge.sock"

// EdgeStatus reads the output of `edgecore status -o json` on a device into a value. A running
// edgecore is asked as that command does, without the half second of CPU that all of Kubernetes
// takes to start; waits ask often.
func (s *System) EdgeStatus(ctx context.Context, node string, into any) error {
	if s.AskSocket(ctx, node, into) == nil {
		return nil
	}
	var out, errs strings.Builder
	code, err := s.Trial.Exec(ctx, node, trial.Streams{Out: &out, Err: &errs}, nil, filepath.Join(s.Root, "bin", "edgecore"), "status", "-o", "json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out.String()), into); err != nil {
		return fmt.Errorf("edgecore status ended with code %d, %s: %w", code, strings.TrimSpace(errs.String()), err)
	}
	return nil
}

// AskSocket is EdgeStatus of an edgecore that answers now.
func (s *System) AskSocket(ctx context.Context, node string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	h, err := s.Trial.Host(node)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(h.Root(), socket))
	}}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://edgecore/skerry/v1/status", http.NoBody)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("edgecore answered %s", answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}
